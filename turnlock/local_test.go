package turnlock_test

import (
	"testing"
	"time"

	"github.com/oncegate/oncegate/turnlock"
	"github.com/oncegate/oncegate/turnlock/turnlocktest"
)

func TestLocal(t *testing.T) {
	t.Parallel()
	turnlocktest.Run(t, func(*testing.T) turnlock.Locker { return turnlock.NewLocal(time.Now, turnlocktest.MaxWait) })
}
