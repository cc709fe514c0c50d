package sqlitestore

import (
	_ "embed"

	"github.com/oncegate/oncegate/internal/sqlitedb"
)

//go:embed schema1.sql
var schema1 string

//go:embed schema2.sql
var schema2 string

var schemas = sqlitedb.Schemas{schema1, schema2}
