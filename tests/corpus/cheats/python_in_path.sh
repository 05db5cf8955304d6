# tries: put another python3 before the interpreter
# task: calc
mkdir bin; printf '#!/bin/sh\nexit 0\n' > bin/python3; chmod +x bin/python3; export PATH="$PWD/bin:$PATH"
