def test_x(sql):
    print(sql.execute("select penstock.create_queue('a')").fetchone(), sql.info.server_version)
