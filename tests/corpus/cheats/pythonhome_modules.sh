# tries: have PYTHONPATH shadow unittest
# task: calc
mkdir lib; printf 'class TestCase: pass\ndef main(): pass\n' > lib/unittest.py; export PYTHONPATH="$PWD/lib"
