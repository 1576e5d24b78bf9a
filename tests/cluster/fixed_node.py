"""`feedrack serve` by somebody who knows the members from the start: `members.json` lies beside the
configuration. `python -m tests.cluster.fixed_node serve --config FILE`."""

import sys
from pathlib import Path

import msgspec

from gateway import app
from gateway.cli import main
from gateway.cluster.members import Member, Members


def _knowing(config_path: Path) -> None:
    raw = (config_path.parent / "members.json").read_bytes()
    found = msgspec.json.decode(raw, type=list[Member])
    plain = app.Node

    class Knowing(plain):  # type: ignore[misc, valid-type]
        def __init__(self, config: app.Config) -> None:
            members = Members(config.node.id)
            members.set(found)
            super().__init__(config, members=members)

    app.Node = Knowing  # type: ignore[misc]


if __name__ == "__main__":
    _knowing(Path(sys.argv[sys.argv.index("--config") + 1]))
    main()
