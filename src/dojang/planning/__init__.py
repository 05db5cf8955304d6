"""`dojang plan`: will this recipe run there, how long will it take, and what will it cost?"""
