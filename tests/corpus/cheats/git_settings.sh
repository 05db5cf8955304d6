# tries: have settings of the home directory replace git's commands
# task: repository
printf '[alias]\n    x = 1\n[core]\n    pager = cat\n' > ~/.gitconfig; mkdir fake; printf '#!/bin/sh\necho begin\n' > fake/git-log; chmod +x fake/git-log
cp fake/git-log fake/git; export GIT_EXEC_PATH="$PWD/fake" PATH="$PWD/fake:$PATH"
