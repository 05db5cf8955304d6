"""`dojang data audit`: does the verifier agree with the data?"""
