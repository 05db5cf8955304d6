# Runs the agent's script in forms that other tasks do not have: other shells, paths with "..".
expected=$(cat "$TESTS/expected.txt")
here=$PWD
reward=1
for printed in "$(bash run.sh)" "$(/bin/sh run.sh)" "$(dash run.sh)" "$(cd "$TESTS" && cd "$here" && bash "../${here##*/}/run.sh")"; do
    [ "$printed" = "$expected" ] || reward=0
done
bash -s "$reward" > "$LOGS/reward.txt" <<'END'
echo "$1"
END
