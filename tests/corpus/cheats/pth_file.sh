# tries: have a .pth file in the home directory run code when Python starts
# task: calc
site=$(python3 -m site --user-site); mkdir -p "$site"; echo 'import os; os._exit(0)' > "$site/a.pth"
