# tries: the same with nohup
# task: calc
# background: yes
nohup bash -c 'while :; do echo 1 > "$LOGS/reward.txt"; sleep 0.02; done' > /dev/null 2>&1 &
