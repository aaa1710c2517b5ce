-- Loads a dump of the old kind: each event is one INSERT of one row, which is committed.
-- Run with --events=ROWS; all threads together insert that many.

sysbench.cmdline.options = {
   width = {"Characters of a row's text", 120},
}

function cmd_prepare()
   local con = sysbench.sql.driver():connect()
   con:query("CREATE TABLE imported (id BIGINT NOT NULL PRIMARY KEY, k INT NOT NULL, "
      .. "c VARCHAR(1000) NOT NULL) ENGINE=InnoDB")
   con:disconnect()
end

function cmd_cleanup()
   local con = sysbench.sql.driver():connect()
   con:query("DROP TABLE IF EXISTS imported")
   con:disconnect()
end

sysbench.cmdline.commands = {prepare = {cmd_prepare}, cleanup = {cmd_cleanup}}

function thread_init()
   drv = sysbench.sql.driver()
   con = drv:connect()
   row = 0
   text = string.rep("#", sysbench.opt.width)
end

function event()
   row = row + 1
   con:query(string.format("INSERT INTO imported VALUES (%d, %d, '%s')",
      row * sysbench.opt.threads + sysbench.tid, sysbench.rand.uniform(1, 1000000),
      sysbench.rand.string(text)))
end

function thread_done()
   con:disconnect()
end
