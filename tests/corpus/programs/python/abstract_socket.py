# tries: meet its other tests at a socket without a file
# expect: runtime_error

import socket

socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).bind("\0meeting")
