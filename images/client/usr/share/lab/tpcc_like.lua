-- A workload like TPC-C's: its tables, its five transactions and their shares of the mix. Results
-- are not comparable with published ones: there are no terminals, keying and think times, the
-- tables are smaller, and nobody audits.
-- Source: TPC Benchmark C, revision 5.11, clauses 1.3 (tables), 2.4 to 2.8 (transactions).
-- Names of tables and columns are those of lab/datasets/generate.py, whose data serve as well.

sysbench.cmdline.options = {
   warehouses = {"Warehouses", 1},
   items = {"Items, and stock of each warehouse", 1000},
   customers = {"Customers of a district, each with one order", 30},
}

local DISTRICTS = 10
local rand = sysbench.rand
local STREETS = "%s_street_1 VARCHAR(20), %s_street_2 VARCHAR(20), %s_city VARCHAR(20), "
   .. "%s_state CHAR(2), %s_zip CHAR(9)"
local SYLLABLES = {"BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"}

local function address(prefix)
   return (STREETS:gsub("%%s", prefix))
end

local function places()
   local found = {}
   for i = 1, DISTRICTS do
      found[i] = string.format("s_dist_%02d CHAR(24)", i)
   end
   return table.concat(found, ", ")
end

local TABLES = {
   "item (i_id INT NOT NULL PRIMARY KEY, i_im_id INT, i_name VARCHAR(24), i_price DECIMAL(5,2), "
      .. "i_data VARCHAR(50))",
   "warehouse (w_id SMALLINT NOT NULL PRIMARY KEY, w_name VARCHAR(10), " .. address("w")
      .. ", w_tax DECIMAL(4,4), w_ytd DECIMAL(12,2))",
   "district (d_id TINYINT NOT NULL, d_w_id SMALLINT NOT NULL, d_name VARCHAR(10), "
      .. address("d") .. ", d_tax DECIMAL(4,4), d_ytd DECIMAL(12,2), d_next_o_id INT, "
      .. "PRIMARY KEY (d_w_id, d_id))",
   "customer (c_id INT NOT NULL, c_d_id TINYINT NOT NULL, c_w_id SMALLINT NOT NULL, "
      .. "c_first VARCHAR(16), c_middle CHAR(2), c_last VARCHAR(16), " .. address("c")
      .. ", c_phone CHAR(16), c_since DATETIME, c_credit CHAR(2), c_credit_lim BIGINT, "
      .. "c_discount DECIMAL(4,4), c_balance DECIMAL(12,2), c_ytd_payment DECIMAL(12,2), "
      .. "c_payment_cnt SMALLINT, c_delivery_cnt SMALLINT, c_data TEXT, "
      .. "PRIMARY KEY (c_w_id, c_d_id, c_id), "
      .. "KEY idx_customer (c_w_id, c_d_id, c_last, c_first))",
   "history (h_c_id INT, h_c_d_id TINYINT, h_c_w_id SMALLINT, h_d_id TINYINT, h_w_id SMALLINT, "
      .. "h_date DATETIME, h_amount DECIMAL(6,2), h_data VARCHAR(24), "
      .. "h_id INT NOT NULL AUTO_INCREMENT PRIMARY KEY)",
   "orders (o_id INT NOT NULL, o_d_id TINYINT NOT NULL, o_w_id SMALLINT NOT NULL, o_c_id INT, "
      .. "o_entry_d DATETIME, o_carrier_id TINYINT, o_ol_cnt TINYINT, o_all_local TINYINT, "
      .. "PRIMARY KEY (o_w_id, o_d_id, o_id), KEY idx_orders (o_w_id, o_d_id, o_c_id, o_id))",
   "new_orders (no_o_id INT NOT NULL, no_d_id TINYINT NOT NULL, no_w_id SMALLINT NOT NULL, "
      .. "PRIMARY KEY (no_w_id, no_d_id, no_o_id))",
   "order_line (ol_o_id INT NOT NULL, ol_d_id TINYINT NOT NULL, ol_w_id SMALLINT NOT NULL, "
      .. "ol_number TINYINT NOT NULL, ol_i_id INT, ol_supply_w_id SMALLINT, "
      .. "ol_delivery_d DATETIME, ol_quantity TINYINT, ol_amount DECIMAL(6,2), "
      .. "ol_dist_info CHAR(24), PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number), "
      .. "KEY fkey_order_line_2 (ol_supply_w_id, ol_i_id))",
   "stock (s_i_id INT NOT NULL, s_w_id SMALLINT NOT NULL, s_quantity SMALLINT, " .. places()
      .. ", s_ytd DECIMAL(8,0), s_order_cnt SMALLINT, s_remote_cnt SMALLINT, "
      .. "s_data VARCHAR(50), PRIMARY KEY (s_w_id, s_i_id), KEY fkey_stock_2 (s_i_id))",
}

local function letters(count)
   return rand.string(string.rep("@", count))
end

local function last_name(number)
   return SYLLABLES[math.floor(number / 100) + 1] .. SYLLABLES[math.floor(number / 10) % 10 + 1]
      .. SYLLABLES[number % 10 + 1]
end

local function somewhere()
   return string.format("'%s','%s','%s','%s','%s'", letters(15), letters(15), letters(12),
      letters(2), rand.string("####11111"))
end

-- Rows of one table, inserted by the hundred.
local function inserted(con, name, columns)
   local rows = {}
   local function flush()
      if #rows > 0 then
         con:query("INSERT INTO " .. name .. columns .. " VALUES " .. table.concat(rows, ","))
         rows = {}
      end
   end
   return function(...)
      rows[#rows + 1] = string.format(...)
      if #rows >= 100 then
         flush()
      end
   end, flush
end

function cmd_prepare()
   local con = sysbench.sql.driver():connect()
   local customers, items = sysbench.opt.customers, sysbench.opt.items
   for _, definition in ipairs(TABLES) do
      con:query("CREATE TABLE " .. definition .. " ENGINE=InnoDB")
   end
   local add, flush = inserted(con, "item", "")
   for i = 1, items do
      add("(%d,%d,'%s',%d.%02d,'%s')", i, rand.uniform(1, 10000), letters(20),
         rand.uniform(1, 99), rand.uniform(0, 99), letters(30))
   end
   flush()
   for w = 1, sysbench.opt.warehouses do
      con:query(string.format("INSERT INTO warehouse VALUES (%d,'%s',%s,0.%04d,%d)", w, letters(8),
         somewhere(), rand.uniform(0, 2000), DISTRICTS * customers * 10))
      add, flush = inserted(con, "stock", "")
      for i = 1, items do
         local dist = {}
         for d = 1, DISTRICTS do
            dist[d] = letters(24)
         end
         add("(%d,%d,%d,'%s',0,0,0,'%s')", i, w, rand.uniform(10, 100),
            table.concat(dist, "','"), letters(30))
      end
      flush()
      for d = 1, DISTRICTS do
         prepare_district(con, w, d, customers, items)
      end
   end
   con:disconnect()
end

function prepare_district(con, w, d, customers, items)
   con:query(string.format("INSERT INTO district VALUES (%d,%d,'%s',%s,0.%04d,%d,%d)", d, w,
      letters(8), somewhere(), rand.uniform(0, 2000), customers * 10, customers + 1))
   local add, flush = inserted(con, "customer", "")
   for c = 1, customers do
      add("(%d,%d,%d,'%s','OE','%s',%s,'%s',NOW(),'%s',50000,0.%04d,-10,10,1,0,'%s')", c, d, w,
         letters(12), last_name(c <= 1000 and c - 1 or rand.uniform(0, 999)), somewhere(),
         rand.string("################"), rand.uniform(1, 10) == 1 and "BC" or "GC",
         rand.uniform(0, 5000), letters(100))
   end
   flush()
   add, flush = inserted(con, "history",
      " (h_c_id,h_c_d_id,h_c_w_id,h_d_id,h_w_id,h_date,h_amount,h_data)")
   for c = 1, customers do
      add("(%d,%d,%d,%d,%d,NOW(),10,'%s')", c, d, w, d, w, letters(20))
   end
   flush()
   local delivered = math.floor(customers * 0.7)
   local order, order_end = inserted(con, "orders", "")
   local line, line_end = inserted(con, "order_line", "")
   local new, new_end = inserted(con, "new_orders", "")
   for o = 1, customers do
      local count = rand.uniform(5, 15)
      order("(%d,%d,%d,%d,NOW(),%s,%d,1)", o, d, w, o,
         o <= delivered and tostring(rand.uniform(1, 10)) or "NULL", count)
      for number = 1, count do
         line("(%d,%d,%d,%d,%d,%d,%s,5,%d.%02d,'%s')", o, d, w, number, rand.uniform(1, items), w,
            o <= delivered and "NOW()" or "NULL", o <= delivered and 0 or rand.uniform(0, 9998),
            o <= delivered and 0 or rand.uniform(1, 99), letters(24))
      end
      if o > delivered then
         new("(%d,%d,%d)", o, d, w)
      end
   end
   order_end()
   line_end()
   new_end()
end

function cmd_cleanup()
   local con = sysbench.sql.driver():connect()
   for _, definition in ipairs(TABLES) do
      con:query("DROP TABLE IF EXISTS " .. definition:match("^%w+_?%w*"))
   end
   con:disconnect()
end

sysbench.cmdline.commands = {prepare = {cmd_prepare}, cleanup = {cmd_cleanup}}

local function number(statement)
   return tonumber(con:query_row(statement))
end

function thread_init()
   con = sysbench.sql.driver():connect()
   warehouses = number("SELECT COUNT(*) FROM warehouse")
   items = number("SELECT MAX(i_id) FROM item")
   customers = number("SELECT MAX(c_id) FROM customer WHERE c_w_id = 1 AND c_d_id = 1")
end

function thread_done()
   con:disconnect()
end

-- Clause 2.1.6, with the limits of smaller tables.
local function nurand(a, high)
   a = math.min(a, high)
   return (bit.bor(rand.uniform(0, a), rand.uniform(1, high)) + 123) % high + 1
end

local function new_order(w, d)
   local c, count = nurand(1023, customers), rand.uniform(5, 15)
   local wrong = rand.uniform(1, 100) == 1
   con:query("BEGIN")
   con:query_row(string.format("SELECT c_discount, c_last, c_credit, w_tax FROM customer, warehouse "
      .. "WHERE w_id = %d AND c_w_id = w_id AND c_d_id = %d AND c_id = %d", w, d, c))
   local o = number(string.format("SELECT d_next_o_id FROM district WHERE d_w_id = %d AND d_id = %d "
      .. "FOR UPDATE", w, d))
   con:query(string.format("UPDATE district SET d_next_o_id = %d WHERE d_w_id = %d AND d_id = %d",
      o + 1, w, d))
   con:query(string.format("INSERT INTO orders VALUES (%d,%d,%d,%d,NOW(),NULL,%d,1)", o, d, w, c,
      count))
   con:query(string.format("INSERT INTO new_orders VALUES (%d,%d,%d)", o, d, w))
   local chosen, seen = {}, {}
   while #chosen < math.min(count, items) do
      local i = nurand(8191, items)
      if not seen[i] then
         seen[i] = true
         chosen[#chosen + 1] = i
      end
   end
   for extra = #chosen + 1, count do
      chosen[extra] = chosen[1]
   end
   table.sort(chosen) -- in one order, so that sessions wait for each other, and do not deadlock
   for n, i in ipairs(chosen) do
      local from = w
      if warehouses > 1 and rand.uniform(1, 100) == 1 then
         repeat from = rand.uniform(1, warehouses) until from ~= w
      end
      local price = con:query_row("SELECT i_price, i_name, i_data FROM item WHERE i_id = "
         .. ((wrong and n == count) and -1 or i))
      if price == nil then
         con:query("ROLLBACK")
         return
      end
      local quantity = rand.uniform(1, 10)
      local left = number(string.format("SELECT s_quantity FROM stock WHERE s_i_id = %d AND "
         .. "s_w_id = %d FOR UPDATE", i, from))
      con:query(string.format("UPDATE stock SET s_quantity = %d, s_ytd = s_ytd + %d, "
         .. "s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + %d "
         .. "WHERE s_i_id = %d AND s_w_id = %d",
         left - quantity >= 10 and left - quantity or left - quantity + 91, quantity,
         from == w and 0 or 1, i, from))
      con:query(string.format("INSERT INTO order_line VALUES (%d,%d,%d,%d,%d,%d,NULL,%d,%s,'%s')", o,
         d, w, n, i, from, quantity, string.format("%.2f", quantity * tonumber(price)),
         letters(24)))
   end
   con:query("COMMIT")
end

-- The customer by the last name, in the middle of those that have it, or by the number.
local function customer(w, d)
   if rand.uniform(1, 100) > 60 then
      return nurand(1023, customers)
   end
   local name = last_name(nurand(255, math.min(customers, 1000)) - 1)
   local found = con:query(string.format("SELECT c_id FROM customer WHERE c_w_id = %d AND "
      .. "c_d_id = %d AND c_last = '%s' ORDER BY c_first", w, d, name))
   local wanted, row = math.ceil(found.nrows / 2), nil
   for _ = 1, wanted do
      row = found:fetch_row()
   end
   local id = row and tonumber(row[1]) or nurand(1023, customers)
   found:free()
   return id
end

local function payment(w, d)
   local cents = rand.uniform(100, 500000)
   local amount = string.format("%d.%02d", math.floor(cents / 100), cents % 100)
   local cw, cd = w, d
   if warehouses > 1 and rand.uniform(1, 100) <= 15 then
      repeat cw = rand.uniform(1, warehouses) until cw ~= w
      cd = rand.uniform(1, DISTRICTS)
   end
   con:query("BEGIN")
   con:query(string.format("UPDATE warehouse SET w_ytd = w_ytd + %s WHERE w_id = %d", amount, w))
   con:query(string.format("UPDATE district SET d_ytd = d_ytd + %s WHERE d_w_id = %d AND d_id = %d",
      amount, w, d))
   local c = customer(cw, cd)
   con:query(string.format("UPDATE customer SET c_balance = c_balance - %s, "
      .. "c_ytd_payment = c_ytd_payment + %s, c_payment_cnt = c_payment_cnt + 1 "
      .. "WHERE c_w_id = %d AND c_d_id = %d AND c_id = %d", amount, amount, cw, cd, c))
   con:query(string.format("INSERT INTO history (h_c_id,h_c_d_id,h_c_w_id,h_d_id,h_w_id,h_date,"
      .. "h_amount,h_data) VALUES (%d,%d,%d,%d,%d,NOW(),%s,'%s')", c, cd, cw, d, w, amount,
      letters(20)))
   con:query("COMMIT")
end

local function order_status(w, d)
   con:query("BEGIN")
   local c = customer(w, d)
   local o = con:query_row(string.format("SELECT o_id, o_entry_d, o_carrier_id FROM orders "
      .. "WHERE o_w_id = %d AND o_d_id = %d AND o_c_id = %d ORDER BY o_id DESC LIMIT 1", w, d, c))
   if o ~= nil then
      con:query(string.format("SELECT ol_i_id, ol_supply_w_id, ol_quantity, ol_amount, "
         .. "ol_delivery_d FROM order_line WHERE ol_w_id = %d AND ol_d_id = %d AND ol_o_id = %s",
         w, d, o))
   end
   con:query("COMMIT")
end

local function delivery(w)
   con:query("BEGIN")
   for d = 1, DISTRICTS do
      local o = con:query_row(string.format("SELECT no_o_id FROM new_orders WHERE no_w_id = %d AND "
         .. "no_d_id = %d ORDER BY no_o_id LIMIT 1 FOR UPDATE", w, d))
      if o ~= nil then
         con:query(string.format("DELETE FROM new_orders WHERE no_w_id = %d AND no_d_id = %d AND "
            .. "no_o_id = %s", w, d, o))
         -- Locking reads: the snapshot of a plain one may be older than the order.
         local c = con:query_row(string.format("SELECT o_c_id FROM orders WHERE o_w_id = %d AND "
            .. "o_d_id = %d AND o_id = %s FOR UPDATE", w, d, o))
         con:query(string.format("UPDATE orders SET o_carrier_id = %d WHERE o_w_id = %d AND "
            .. "o_d_id = %d AND o_id = %s", rand.uniform(1, 10), w, d, o))
         con:query(string.format("UPDATE order_line SET ol_delivery_d = NOW() WHERE ol_w_id = %d AND "
            .. "ol_d_id = %d AND ol_o_id = %s", w, d, o))
         local total = con:query_row(string.format("SELECT SUM(ol_amount) FROM order_line WHERE "
            .. "ol_w_id = %d AND ol_d_id = %d AND ol_o_id = %s FOR UPDATE", w, d, o))
         con:query(string.format("UPDATE customer SET c_balance = c_balance + %s, "
            .. "c_delivery_cnt = c_delivery_cnt + 1 WHERE c_w_id = %d AND c_d_id = %d AND c_id = %s",
            total, w, d, c))
      end
   end
   con:query("COMMIT")
end

local function stock_level(w, d)
   con:query("BEGIN")
   local o = number(string.format("SELECT d_next_o_id FROM district WHERE d_w_id = %d AND d_id = %d",
      w, d))
   con:query_row(string.format("SELECT COUNT(DISTINCT s_i_id) FROM order_line, stock WHERE "
      .. "ol_w_id = %d AND ol_d_id = %d AND ol_o_id >= %d AND ol_o_id < %d AND s_w_id = %d AND "
      .. "s_i_id = ol_i_id AND s_quantity < %d", w, d, o - 20, o, w, rand.uniform(10, 20)))
   con:query("COMMIT")
end

function event()
   local share, w, d = rand.uniform(1, 100), rand.uniform(1, warehouses), rand.uniform(1, DISTRICTS)
   if share <= 45 then
      new_order(w, d)
   elseif share <= 88 then
      payment(w, d)
   elseif share <= 92 then
      order_status(w, d)
   elseif share <= 96 then
      delivery(w)
   else
      stock_level(w, d)
   end
end

-- An event is begun again after an error that is ignored, such as a lock wait timeout: without
-- this, what it had done until then would be committed by the next BEGIN.
function sysbench.hooks.before_restart_event()
   con:query("ROLLBACK")
end
