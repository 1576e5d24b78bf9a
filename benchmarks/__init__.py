"""How fast one node is, beside other servers on the same machine.

`load` drives a server and checks what it answers, `server` runs one and reads its CPU and memory
from the kernel, `rounds` lets them take turns, `aims` and `report` write down what came of it, and
`memory` bounds what slow clients cost. Nothing here is imported by the product.
"""
