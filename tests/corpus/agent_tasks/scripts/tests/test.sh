# Runs the agent's files in forms that other rules do not cover: copies, programs from stdin, another shell.
expected=$(bash -s "$TESTS/expected.txt" <<'END'
cat "$1"
END
)
cp main.py /tmp/copy.py
cp run.sh /tmp/copy.sh
reward=1
for printed in \
    "$(python3 /tmp/copy.py)" "$(python3 < main.py)" "$(cat main.py | python3 -)" "$(python3 -c "$(cat main.py)")" \
    "$(bash /tmp/copy.sh)" "$(bash < run.sh)" "$(cat run.sh | bash -s)" "$(/bin/sh run.sh)" "$(dash run.sh)"; do
    [ "$printed" = "$expected" ] || reward=0
done
python3 - "$reward" > "$LOGS/reward.txt" <<'END'
import sys

print(sys.argv[1])
END
