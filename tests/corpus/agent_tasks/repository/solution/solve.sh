git init -q && git add . && git -c user.name=a -c user.email=a@a commit -qm begin
