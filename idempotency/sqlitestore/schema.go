package sqlitestore

import (
	_ "embed"

	"github.com/oncegate/oncegate/internal/sqlitedb"
)

//go:embed schema1.sql
var schema1 string

//go:embed schema2.sql
var schema2 string

//go:embed schema3.sql
var schema3 string

var schemas = sqlitedb.Schemas{schema1, schema2, schema3}
