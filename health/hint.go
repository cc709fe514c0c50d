package health

import "strings"

// RedisHint says what to do about trouble of a class with the Redis of
// gateway.push.redis, in the words of /health and doctor alike.
func RedisHint(class string) string {
	switch class {
	case "unreachable":
		return "start Redis, or correct its address in gateway.push.redis; if it runs, see whether it answers, and whether that port speaks TLS"
	case "auth":
		return "correct the user and password in gateway.push.redis"
	case "permission":
		return "allow the user the keys, channels and commands that docs/operations.md lists under Redis"
	case "tls":
		return "correct gateway.push.redis.tls: the authority in ca_file, and server_name"
	case "readonly":
		return "a replica answers: name the primary in gateway.push.redis, or wait for the failover to end"
	case "loading":
		return "wait until Redis has read its data"
	case "oom":
		return "raise maxmemory of Redis, or free some of it"
	case "misconf":
		return "repair the disk that Redis saves to; its log says more"
	case "emptied":
		return "wait: what this replica knows is being written into it; see why Redis lost its data"
	}
	return "look at the log of Redis: it refuses what the gateway needs"
}

// FileHint says what to do about trouble of a class with a database in the
// state directory. It sends nobody to move away a file that is sound.
func FileHint(file, class string) string {
	hint := "keep FILE and look at its disk; the system's log may say more"
	switch class {
	case "corrupt":
		hint = "stop the gateway, then restore FILE in gateway.state_dir from a backup, or move it away to begin with an empty one"
	case "locked":
		hint = "end the process that holds FILE in gateway.state_dir"
	case "full":
		hint = "free space on the disk of gateway.state_dir"
	case "not_writable":
		hint = "make gateway.state_dir and FILE writable for the gateway's user, or choose another directory"
	case "readonly":
		hint = "mount the disk of gateway.state_dir for writing, or choose another directory"
	case "io":
		hint = "look at the disk of gateway.state_dir"
	case "replaced":
		hint = "wait: the file that is at the path of FILE now is being opened"
	}
	return strings.ReplaceAll(hint, "FILE", file)
}
