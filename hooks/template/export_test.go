package template

// Unused lets a test hold in its text what a digest of that text cannot be.
var Unused = unused
