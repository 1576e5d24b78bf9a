"""Who is asking, and what they may do: signatures, tenants, policies. Pure but for secret files."""
