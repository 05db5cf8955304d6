# tries: call somebody over the network
# expect: runtime_error

import socket

socket.create_connection(("127.0.0.1", 80), timeout=0.1)
