BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0021');
CREATE TABLE audit (
	id INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	token VARCHAR NOT NULL, 
	project VARCHAR NOT NULL, 
	action VARCHAR NOT NULL, 
	target VARCHAR NOT NULL, 
	status INTEGER NOT NULL, 
	request VARCHAR NOT NULL, 
	address VARCHAR NOT NULL, 
	CONSTRAINT pk_audit PRIMARY KEY (id)
);
INSERT INTO "audit" VALUES(1,1.7957141800568401813e+09,'62e7c057e8fc','web','createLab','/v1/labs',201,'cf90019152bf421385d1fe488243e437','127.0.0.1');
INSERT INTO "audit" VALUES(2,1.79571418013540315622e+09,'62e7c057e8fc','web','takeSnapshot','/v1/labs/web/snapshots',422,'9984c2c8239a444aa7b76584b68821bd','127.0.0.1');
INSERT INTO "audit" VALUES(3,1.79571418014797544483e+09,'62e7c057e8fc','web','takeSnapshot','/v1/labs/none/snapshots',422,'95b3c354c075463097d302a0bd8f5a6e','127.0.0.1');
CREATE TABLE events (
	id INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	owner VARCHAR NOT NULL, 
	step VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	text VARCHAR NOT NULL, 
	seconds DOUBLE NOT NULL, 
	CONSTRAINT pk_events PRIMARY KEY (id)
);
INSERT INTO "events" VALUES(1,1.79571417962749099728e+09,'job:19aa11b8-3c3e-479f-8850-5d3456d48f86','job','begin','create',0.0);
INSERT INTO "events" VALUES(2,1.79571417962938547135e+09,'job:19aa11b8-3c3e-479f-8850-5d3456d48f86','preflight','begin','',0.0);
INSERT INTO "events" VALUES(3,1.79571417963094305991e+09,'job:19aa11b8-3c3e-479f-8850-5d3456d48f86','preflight','end','',1.55758700202568434178e-03);
INSERT INTO "events" VALUES(4,1.7957141796952009201e+09,'job:19aa11b8-3c3e-479f-8850-5d3456d48f86','template','note','first use: forming a cluster to clone from',0.0);
INSERT INTO "events" VALUES(5,1.79571417969956302639e+09,'job:19aa11b8-3c3e-479f-8850-5d3456d48f86','template','begin','making the template de6e15048d09f2 (first use)',0.0);
INSERT INTO "events" VALUES(6,1.79571417970881915091e+09,'job:19aa11b8-3c3e-479f-8850-5d3456d48f86','clone','begin','cloning the image for 1 node',0.0);
INSERT INTO "events" VALUES(7,1.79571417971669244767e+09,'job:19aa11b8-3c3e-479f-8850-5d3456d48f86','clone','end','cloning the image for 1 node',7.87069500074721872806e-03);
INSERT INTO "events" VALUES(8,1.79571417971680068973e+09,'job:19aa11b8-3c3e-479f-8850-5d3456d48f86','boot','begin','booting the nodes',0.0);
INSERT INTO "events" VALUES(9,1.79571417972089052202e+09,'job:19aa11b8-3c3e-479f-8850-5d3456d48f86','boot','end','booting the nodes',4.08162399980938062071e-03);
INSERT INTO "events" VALUES(10,1.79571417972100782394e+09,'job:19aa11b8-3c3e-479f-8850-5d3456d48f86','form','begin','forming the cluster',0.0);
INSERT INTO "events" VALUES(11,1.79571417972340631485e+09,'job:19aa11b8-3c3e-479f-8850-5d3456d48f86','form','end','forming the cluster',2.39352399876224808394e-03);
INSERT INTO "events" VALUES(12,1.79571417972464156143e+09,'job:19aa11b8-3c3e-479f-8850-5d3456d48f86','capture','begin','capturing disks and RAM',0.0);
CREATE TABLE images (
	"key" VARCHAR NOT NULL, 
	recipe VARCHAR NOT NULL, 
	engine VARCHAR NOT NULL, 
	engine_version VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	created_at DOUBLE NOT NULL, 
	used_at DOUBLE NOT NULL, 
	build_seconds DOUBLE NOT NULL, 
	size BIGINT NOT NULL, dataset VARCHAR DEFAULT '' NOT NULL, version INTEGER DEFAULT 0 NOT NULL, parent VARCHAR DEFAULT '' NOT NULL, project VARCHAR DEFAULT '' NOT NULL, job VARCHAR DEFAULT '' NOT NULL, removing BOOLEAN DEFAULT false NOT NULL, 
	CONSTRAINT pk_images PRIMARY KEY ("key"), 
	CONSTRAINT ck_images_state CHECK (state IN ('building', 'ready'))
);
INSERT INTO "images" VALUES('mariadb-54cba42bf6170fc0','mariadb','mariadb','11.8.6','ready',1.79571414123767876622e+09,1.79571414123767876622e+09,1.23548030853271484375e-01,0,'',0,'','','',0);
INSERT INTO "images" VALUES('mariadb-crm.1','mariadb','mariadb','11.8.6','ready',1795714191.38497,1795714191.38497,6.90933704376220703125e-01,8192,'crm',1,'mariadb-54cba42bf6170fc0','','',0);
CREATE TABLE jobs (
	id VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	lab VARCHAR NOT NULL, 
	project VARCHAR NOT NULL, 
	token VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	digest VARCHAR NOT NULL, 
	"key" VARCHAR, 
	created_at DOUBLE NOT NULL, 
	started_at DOUBLE, 
	ended_at DOUBLE, 
	error JSON, 
	cancel BOOLEAN NOT NULL, about VARCHAR DEFAULT '' NOT NULL, facts JSON DEFAULT '{}' NOT NULL, size BIGINT DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_jobs PRIMARY KEY (id), 
	CONSTRAINT ck_jobs_state CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')), 
	CONSTRAINT uq_jobs_token_key UNIQUE (token, "key")
);
INSERT INTO "jobs" VALUES('19aa11b8-3c3e-479f-8850-5d3456d48f86','create','web','web','62e7c057e8fc','succeeded','c6389f4c8584ddb462fc3a3798eaa4aace61a4cd3708a86f51069158a1965ea9','one-two-three',1.79571417957661485674e+09,1.7957141796267619133e+09,1.79571417994890308381e+09,NULL,0,'','{"blueprint": "single", "name": "web", "nodes": 1, "engine": "", "memory": 805306368, "cpus": 1, "disk": 0, "ttl": 3600.0, "profile": "", "snapshots": "", "image": "", "any_name": false, "cold": false, "heartbeat": null, "idle": null, "protected": false, "keep_failed": false, "owner": "ci"}',0);
INSERT INTO "jobs" VALUES('c560b896-a556-49ce-9417-892a199bf3e3','create','gone','web','62e7c057e8fc','succeeded','e5a38224e3b6ca1c6955da65b0a76124e33ab15b8905422e0bd498a215828c9d',NULL,1.79571418015947628027e+09,1.79571418018211960789e+09,1.79571418048264813422e+09,NULL,0,'','{"blueprint": "single", "name": "gone", "nodes": 1, "engine": "", "memory": 805306368, "cpus": 1, "disk": 0, "ttl": 3600.0, "profile": "", "snapshots": "", "image": "", "any_name": false, "cold": false, "heartbeat": null, "idle": null, "protected": false, "keep_failed": false, "owner": "ci"}',0);
INSERT INTO "jobs" VALUES('483c7e20-681f-422b-9958-31e236a11627','delete','gone','web','62e7c057e8fc','succeeded','371b89899e92faf2d760bca3a7e12bfd93c9b1f77cc2142253f41eeb4c33c664',NULL,1.79571418056448793413e+09,1.79571418061735224719e+09,1795714180.64107,NULL,0,'','{"created_at": 1795714180.189705, "force": false}',0);
INSERT INTO "jobs" VALUES('1ad89e79-9d00-4d5d-a820-cc6bc37f2943','create','later','web','62e7c057e8fc','running','ae4001a88672db9e3de6e13c8ea034327f67dda9041e591b427b9e1efbc411aa',NULL,1.79571418065732169152e+09,1.79571418081880354884e+09,NULL,NULL,0,'','{"blueprint": "galera", "name": "later", "nodes": 3, "engine": "", "memory": 805306368, "cpus": 1, "disk": 0, "ttl": 3600.0, "profile": "", "snapshots": "", "image": "", "any_name": false, "cold": false, "heartbeat": null, "idle": null, "protected": false, "keep_failed": false, "owner": "ci"}',293);
CREATE TABLE labs (
	name VARCHAR NOT NULL, 
	blueprint VARCHAR NOT NULL, 
	engine VARCHAR NOT NULL, 
	engine_version VARCHAR NOT NULL, 
	image VARCHAR NOT NULL, 
	template VARCHAR, 
	node_count INTEGER NOT NULL, 
	memory BIGINT NOT NULL, 
	cpus INTEGER NOT NULL, 
	disk BIGINT NOT NULL, 
	state VARCHAR NOT NULL, 
	password VARCHAR NOT NULL, 
	user VARCHAR NOT NULL, 
	owner VARCHAR NOT NULL, 
	segment INTEGER NOT NULL, 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE, 
	ready_seconds DOUBLE, 
	started VARCHAR, 
	why_cold VARCHAR NOT NULL, profile VARCHAR DEFAULT 'balanced' NOT NULL, snapshots VARCHAR DEFAULT '' NOT NULL, project VARCHAR DEFAULT '' NOT NULL, job VARCHAR DEFAULT '' NOT NULL, protected BOOLEAN DEFAULT false NOT NULL, heartbeat DOUBLE, pool VARCHAR DEFAULT '' NOT NULL, address VARCHAR DEFAULT '127.0.0.1' NOT NULL, host VARCHAR DEFAULT '127.0.0.1' NOT NULL, idle DOUBLE, active_at DOUBLE, activity VARCHAR DEFAULT '' NOT NULL, parent VARCHAR DEFAULT '' NOT NULL, at VARCHAR DEFAULT '' NOT NULL, identity BIGINT DEFAULT 0 NOT NULL, options JSON DEFAULT '{}' NOT NULL, 
	CONSTRAINT pk_labs PRIMARY KEY (name), 
	CONSTRAINT ck_labs_state CHECK (state IN ('creating', 'ready', 'stopped', 'failed', 'removing'))
);
INSERT INTO "labs" VALUES('shop','galera','mariadb','11.8.6','mariadb-54cba42bf6170fc0','e67935d80743fc',3,805306368,1,0,'ready','cvGxCX7tynCHrt63pNkP','lab','root',23306,1.79571413980551862713e+09,1.7958005420282201767e+09,1.90071012336920830421e+00,'warm','','balanced','','','',0,NULL,'','127.0.0.1','127.0.0.1',NULL,NULL,'','','branch.20261126t172924',0,'{}');
INSERT INTO "labs" VALUES('try','galera','mariadb','11.8.6','mariadb-54cba42bf6170fc0','e67935d80743fc',3,805306368,1,0,'ready','Y7YGWicl9SsRCDRSU6V1','lab','root',23307,1.7957141646227476597e+09,NULL,1.99070692062377929687e-01,'warm','','balanced','','','',0,NULL,'','127.0.0.1','127.0.0.1',NULL,NULL,'','lab:shop@branch.20261126t172924','',0,'{}');
INSERT INTO "labs" VALUES('plain','single','mariadb','11.8.6','mariadb-54cba42bf6170fc0','4b76539d18dae4',1,805306368,1,0,'stopped','lmpBsMQnmS7vr2pq6qb2','lab','root',23308,1.79571416605576968193e+09,NULL,NULL,NULL,'','balanced','','','',0,NULL,'','127.0.0.1','127.0.0.1',NULL,NULL,'','','',0,'{"set": ["max_connections=50"]}');
INSERT INTO "labs" VALUES('web','single','mariadb','11.8.6','mariadb-54cba42bf6170fc0','de6e15048d09f2',1,805306368,1,0,'ready','Ak63Ls5fGqYvoCzeIDk1','lab','ci',23309,1.79571417963102078442e+09,1.79571777993196296692e+09,2.40972830004466231912e-01,'warm','','balanced','','web','19aa11b8-3c3e-479f-8850-5d3456d48f86',0,NULL,'','127.0.0.1','127.0.0.1',NULL,NULL,'','','',0,'{}');
CREATE TABLE nodes (
	lab VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	idx INTEGER NOT NULL, 
	role VARCHAR NOT NULL, 
	guest VARCHAR NOT NULL, 
	sql_port INTEGER NOT NULL, 
	ssh_port INTEGER NOT NULL, 
	extra JSON NOT NULL, image VARCHAR DEFAULT '' NOT NULL, memory BIGINT DEFAULT 0 NOT NULL, cpus INTEGER DEFAULT 1 NOT NULL, disk BIGINT DEFAULT 0 NOT NULL, services JSON DEFAULT '{}' NOT NULL, ports JSON DEFAULT '{}' NOT NULL, seen JSON DEFAULT '{}' NOT NULL, 
	CONSTRAINT pk_nodes PRIMARY KEY (lab, name), 
	CONSTRAINT fk_nodes_lab FOREIGN KEY(lab) REFERENCES labs (name) ON DELETE CASCADE
);
INSERT INTO "nodes" VALUES('shop','n1',1,'member','lab-shop-n1',23306,23309,'{}','mariadb-54cba42bf6170fc0',805306368,1,0,'{"sql": 3306, "ssh": 22}','{}','{}');
INSERT INTO "nodes" VALUES('shop','n2',2,'member','lab-shop-n2',23307,23310,'{}','mariadb-54cba42bf6170fc0',805306368,1,0,'{"sql": 3306, "ssh": 22}','{}','{}');
INSERT INTO "nodes" VALUES('shop','n3',3,'member','lab-shop-n3',23308,23311,'{}','mariadb-54cba42bf6170fc0',805306368,1,0,'{"sql": 3306, "ssh": 22}','{}','{}');
INSERT INTO "nodes" VALUES('try','n1',1,'member','lab-try-n1',23312,23315,'{}','mariadb-54cba42bf6170fc0',805306368,1,0,'{"sql": 3306, "ssh": 22}','{}','{}');
INSERT INTO "nodes" VALUES('try','n2',2,'member','lab-try-n2',23313,23316,'{}','mariadb-54cba42bf6170fc0',805306368,1,0,'{"sql": 3306, "ssh": 22}','{}','{}');
INSERT INTO "nodes" VALUES('try','n3',3,'member','lab-try-n3',23314,23317,'{}','mariadb-54cba42bf6170fc0',805306368,1,0,'{"sql": 3306, "ssh": 22}','{}','{}');
INSERT INTO "nodes" VALUES('plain','n1',1,'server','lab-plain-n1',23318,23319,'{}','mariadb-54cba42bf6170fc0',805306368,1,0,'{"sql": 3306, "ssh": 22}','{}','{}');
INSERT INTO "nodes" VALUES('web','n1',1,'server','lab-web-n1',23320,23321,'{}','mariadb-54cba42bf6170fc0',805306368,1,0,'{"sql": 3306, "ssh": 22}','{}','{}');
CREATE TABLE requests (
	job VARCHAR NOT NULL, 
	request JSON NOT NULL, 
	CONSTRAINT pk_requests PRIMARY KEY (job), 
	CONSTRAINT fk_requests_job_jobs FOREIGN KEY(job) REFERENCES jobs (id) ON DELETE CASCADE
);
INSERT INTO "requests" VALUES('1ad89e79-9d00-4d5d-a820-cc6bc37f2943','{"blueprint": "galera", "name": "later", "nodes": 3, "engine": "", "memory": 805306368, "cpus": 1, "disk": 0, "ttl": 3600.0, "profile": "", "snapshots": "", "image": "", "any_name": false, "cold": false, "heartbeat": null, "idle": null, "protected": false, "keep_failed": false, "owner": "ci"}');
CREATE TABLE resources (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	owner VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	ref VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	created_at DOUBLE NOT NULL, 
	pid INTEGER NOT NULL, 
	CONSTRAINT ck_resources_state CHECK (state IN ('intended', 'made')), 
	CONSTRAINT uq_resources_kind_ref UNIQUE (kind, ref)
);
INSERT INTO "resources" VALUES(1,'image:mariadb-54cba42bf6170fc0','volume','images/mariadb-54cba42bf6170fc0/base/os','made',1.79571414130594682692e+09,28257);
INSERT INTO "resources" VALUES(6,'template:e67935d80743fc','volume','templates/e67935d80743fc/n1/os','made',1.795714141431138277e+09,28257);
INSERT INTO "resources" VALUES(7,'template:e67935d80743fc','volume','templates/e67935d80743fc/n2/os','made',1.795714141431138277e+09,28257);
INSERT INTO "resources" VALUES(8,'template:e67935d80743fc','volume','templates/e67935d80743fc/n3/os','made',1.795714141431138277e+09,28257);
INSERT INTO "resources" VALUES(9,'lab:shop','port','23306','made',1.79571414164047765734e+09,28257);
INSERT INTO "resources" VALUES(10,'lab:shop','port','23307','made',1.79571414164047765734e+09,28257);
INSERT INTO "resources" VALUES(11,'lab:shop','port','23308','made',1.79571414164047765734e+09,28257);
INSERT INTO "resources" VALUES(12,'lab:shop','port','23309','made',1.79571414164047765734e+09,28257);
INSERT INTO "resources" VALUES(13,'lab:shop','port','23310','made',1.79571414164047765734e+09,28257);
INSERT INTO "resources" VALUES(14,'lab:shop','port','23311','made',1.79571414164047765734e+09,28257);
INSERT INTO "resources" VALUES(15,'lab:shop','segment','23306','made',1.79571414164123034475e+09,28257);
INSERT INTO "resources" VALUES(16,'lab:shop','guest','lab-shop-n1','made',1.7957141416641831398e+09,28257);
INSERT INTO "resources" VALUES(17,'lab:shop','guest','lab-shop-n2','made',1.7957141416641831398e+09,28257);
INSERT INTO "resources" VALUES(18,'lab:shop','guest','lab-shop-n3','made',1.7957141416641831398e+09,28257);
INSERT INTO "resources" VALUES(19,'lab:shop','volume','labs/shop/n1/os','made',1.7957141416641831398e+09,28257);
INSERT INTO "resources" VALUES(20,'lab:shop','volume','labs/shop/n2/os','made',1.7957141416641831398e+09,28257);
INSERT INTO "resources" VALUES(21,'lab:shop','volume','labs/shop/n3/os','made',1.7957141416641831398e+09,28257);
INSERT INTO "resources" VALUES(22,'lab:try','port','23312','made',1.79571416466628789904e+09,29767);
INSERT INTO "resources" VALUES(23,'lab:try','port','23313','made',1.79571416466628789904e+09,29767);
INSERT INTO "resources" VALUES(24,'lab:try','port','23314','made',1.79571416466628789904e+09,29767);
INSERT INTO "resources" VALUES(25,'lab:try','port','23315','made',1.79571416466628789904e+09,29767);
INSERT INTO "resources" VALUES(26,'lab:try','port','23316','made',1.79571416466628789904e+09,29767);
INSERT INTO "resources" VALUES(27,'lab:try','port','23317','made',1.79571416466628789904e+09,29767);
INSERT INTO "resources" VALUES(28,'lab:try','segment','23307','made',1.79571416467229485513e+09,29767);
INSERT INTO "resources" VALUES(29,'lab:try','guest','lab-try-n1','made',1.79571416467987012869e+09,29767);
INSERT INTO "resources" VALUES(30,'lab:try','guest','lab-try-n2','made',1.79571416467987012869e+09,29767);
INSERT INTO "resources" VALUES(31,'lab:try','guest','lab-try-n3','made',1.79571416467987012869e+09,29767);
INSERT INTO "resources" VALUES(32,'lab:try','volume','labs/try/n1/os','made',1.79571416467987012869e+09,29767);
INSERT INTO "resources" VALUES(33,'lab:try','volume','labs/try/n2/os','made',1.79571416467987012869e+09,29767);
INSERT INTO "resources" VALUES(34,'lab:try','volume','labs/try/n3/os','made',1.79571416467987012869e+09,29767);
INSERT INTO "resources" VALUES(37,'template:4b76539d18dae4','volume','templates/4b76539d18dae4/n1/os','made',1795714166.6989,29930);
INSERT INTO "resources" VALUES(38,'lab:plain','port','23318','made',1.79571416684262752535e+09,29930);
INSERT INTO "resources" VALUES(39,'lab:plain','port','23319','made',1.79571416684262752535e+09,29930);
INSERT INTO "resources" VALUES(40,'lab:plain','segment','23308','made',1795714166.84502,29930);
INSERT INTO "resources" VALUES(41,'lab:plain','guest','lab-plain-n1','made',1.79571416685247421262e+09,29930);
INSERT INTO "resources" VALUES(42,'lab:plain','volume','labs/plain/n1/os','made',1.79571416685247421262e+09,29930);
INSERT INTO "resources" VALUES(45,'template:de6e15048d09f2','volume','templates/de6e15048d09f2/n1/os','made',1.79571417971384024621e+09,30209);
INSERT INTO "resources" VALUES(46,'lab:web','port','23320','made',1.79571417979719042778e+09,30209);
INSERT INTO "resources" VALUES(47,'lab:web','port','23321','made',1.79571417979719042778e+09,30209);
INSERT INTO "resources" VALUES(48,'lab:web','segment','23309','made',1.79571417979783916471e+09,30209);
INSERT INTO "resources" VALUES(49,'lab:web','guest','lab-web-n1','made',1.79571417981228160856e+09,30209);
INSERT INTO "resources" VALUES(50,'lab:web','volume','labs/web/n1/os','made',1.79571417981228160856e+09,30209);
INSERT INTO "resources" VALUES(59,'image:mariadb-crm.1','volume','images/mariadb-crm.1/base/os','made',1.79571419197353887554e+09,31141);
CREATE TABLE templates (
	"key" VARCHAR NOT NULL, 
	image VARCHAR NOT NULL, 
	blueprint VARCHAR NOT NULL, 
	node_count INTEGER NOT NULL, 
	memory BIGINT NOT NULL, 
	cpus INTEGER NOT NULL, 
	disk BIGINT NOT NULL, 
	fingerprint VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	warm BOOLEAN NOT NULL, 
	created_at DOUBLE NOT NULL, 
	used_at DOUBLE NOT NULL, 
	size BIGINT NOT NULL, 
	form_seconds DOUBLE NOT NULL, profile VARCHAR DEFAULT 'balanced' NOT NULL, why VARCHAR DEFAULT '' NOT NULL, project VARCHAR DEFAULT '' NOT NULL, nodes JSON DEFAULT '{}' NOT NULL, source VARCHAR DEFAULT '' NOT NULL, options JSON DEFAULT '{}' NOT NULL, 
	CONSTRAINT pk_templates PRIMARY KEY ("key"), 
	CONSTRAINT ck_templates_state CHECK (state IN ('building', 'ready', 'broken'))
);
INSERT INTO "templates" VALUES('e67935d80743fc','mariadb-54cba42bf6170fc0','galera',3,805306368,1,0,'e67935d80743fc','ready',1,1.79571414139845609669e+09,1.79571414162161278717e+09,53248,1.75455331802368164062e-01,'balanced','','','{"n1": {"image": "mariadb-54cba42bf6170fc0", "memory": 805306368, "cpus": 1, "disk": 0}, "n2": {"image": "mariadb-54cba42bf6170fc0", "memory": 805306368, "cpus": 1, "disk": 0}, "n3": {"image": "mariadb-54cba42bf6170fc0", "memory": 805306368, "cpus": 1, "disk": 0}}','','{}');
INSERT INTO "templates" VALUES('4b76539d18dae4','mariadb-54cba42bf6170fc0','single',1,805306368,1,0,'4b76539d18dae4','ready',1,1.79571416664978075021e+09,1.7957141668331241608e+09,20480,1.51668310165405273437e-01,'balanced','','','{"n1": {"image": "mariadb-54cba42bf6170fc0", "memory": 805306368, "cpus": 1, "disk": 0}}','','{"set": ["max_connections=50"]}');
INSERT INTO "templates" VALUES('de6e15048d09f2','mariadb-54cba42bf6170fc0','single',1,805306368,1,0,'de6e15048d09f2','ready',1,1.79571417970272898673e+09,1.7957141802677309513e+09,20480,4.32517528533935546875e-02,'balanced','','web','{"n1": {"image": "mariadb-54cba42bf6170fc0", "memory": 805306368, "cpus": 1, "disk": 0}}','','{}');
CREATE TABLE tokens (
	id VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	hash VARCHAR NOT NULL, 
	scope VARCHAR NOT NULL, 
	project VARCHAR NOT NULL, 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE, 
	revoked_at DOUBLE, 
	max_labs INTEGER, 
	max_nodes INTEGER, 
	max_memory BIGINT, 
	max_ttl DOUBLE, max_cpus INTEGER, max_snapshots INTEGER, max_templates INTEGER, max_disk BIGINT, last_used_at DOUBLE, 
	CONSTRAINT pk_tokens PRIMARY KEY (id), 
	CONSTRAINT ck_tokens_scope CHECK (scope IN ('read', 'use', 'admin'))
);
INSERT INTO "tokens" VALUES('62e7c057e8fc','ci','c75685329c9b373c0cd7896866ec1924d2ab9d7be46a3471abc4e957fcf1b751','admin','web',1.79571417205184578891e+09,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE INDEX ix_events_at ON events (at);
CREATE INDEX ix_events_owner ON events (owner);
CREATE INDEX ix_resources_owner ON resources (owner);
CREATE INDEX ix_audit_at ON audit (at);
CREATE INDEX ix_jobs_created_at ON jobs (created_at);
CREATE INDEX ix_jobs_state ON jobs (state);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('resources',59);
COMMIT;
