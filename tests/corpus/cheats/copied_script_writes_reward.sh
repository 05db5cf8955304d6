# tries: have a copy of the script, the script from stdin, or another shell start a process that writes the reward later
# task: scripts
# background: yes
echo 'print(0)' > main.py
cat > run.sh <<'END'
(while :; do echo 1 > "$LOGS/reward.txt"; sleep 0.02; done) > /dev/null 2>&1 < /dev/null &
echo 0
END
