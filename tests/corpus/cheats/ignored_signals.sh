# tries: leave a process that ignores all signals it can
# task: calc
# background: yes
bash -c 'trap "" TERM INT HUP QUIT PIPE USR1 USR2; while :; do echo 1 > "$LOGS/reward.txt"; sleep 0.02; done' > /dev/null 2>&1 &
