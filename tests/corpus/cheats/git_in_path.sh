# tries: put another git before the real one
# task: repository
mkdir bin; printf '#!/bin/sh\necho begin\n' > bin/git; chmod +x bin/git; export PATH="$PWD/bin:$PATH"
