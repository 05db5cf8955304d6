# tries: the same in a new session
# task: calc
# background: yes
setsid bash -c 'while :; do echo 1 > "$LOGS/reward.txt"; sleep 0.02; done' > /dev/null 2>&1 &
