package redisstore

import _ "embed" // for the scripts

//go:embed index.lua
var indexSource string

//go:embed message.lua
var messageSource string

//go:embed held.lua
var heldSource string

//go:embed accept.lua
var acceptSource string

//go:embed look.lua
var lookSource string

//go:embed take.lua
var takeSource string

//go:embed extend.lua
var extendSource string

//go:embed checkpoint.lua
var checkpointSource string

//go:embed retry.lua
var retrySource string

//go:embed bury.lua
var burySource string

//go:embed finish.lua
var finishSource string

//go:embed supersede.lua
var supersedeSource string

//go:embed replay.lua
var replaySource string

//go:embed drop.lua
var dropSource string

//go:embed count.lua
var countSource string

// inboxScripts are those about stored messages.
type inboxScripts struct {
	accept, take, replay, drop                         script // about one
	extend, checkpoint, retry, bury, finish, supersede script // by who runs it
	look, count                                        script // about the index
}

func newInboxScripts() inboxScripts {
	about := func(source string) script { return newScript(indexSource + messageSource + source) }
	held := func(source string) script { return about(heldSource + source) }
	return inboxScripts{
		accept: about(acceptSource), replay: about(replaySource),
		take: about(ownerSource + takeSource), drop: about(ownerSource + dropSource),
		extend: held(extendSource), checkpoint: held(checkpointSource), retry: held(retrySource), bury: held(burySource),
		finish: held(finishSource), supersede: held(supersedeSource),
		look: newScript(indexSource + lookSource), count: newScript(indexSource + countSource),
	}
}
