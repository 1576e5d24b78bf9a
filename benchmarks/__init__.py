"""How fast one node is, beside other servers on the same machine.

`load` drives a server and checks what it answers, `servers` runs the peers and reads their CPU and
memory from the kernel, `objects` makes the bytes, `run` puts rounds together and `report` writes
them down; `memory` bounds what slow clients cost. Nothing here is imported by the product.
"""
