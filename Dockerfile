# A node's image: docker build -t feedrack .
FROM python:3.12-slim

COPY pyproject.toml README.md /src/
COPY gateway /src/gateway
COPY packer /src/packer
COPY feedrack /src/feedrack
COPY scheduler_plugin /src/scheduler_plugin
RUN pip install --no-cache-dir /src \
    && useradd --system --home-dir /cache --create-home feedrack

USER feedrack
EXPOSE 9000 9001 9002
ENTRYPOINT ["feedrack"]
CMD ["serve", "--config", "/etc/feedrack/feedrack.toml"]
