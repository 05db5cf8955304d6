export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
cp "$TESTS/check_calc.py" .
reward=0
python3 -m pytest -q -p no:cacheprovider check_calc.py && reward=1
echo $reward > "$LOGS/reward.txt"
