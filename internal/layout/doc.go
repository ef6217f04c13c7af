// Package layout holds the tests that keep the tree as ARCHITECTURE.md draws it:
// who may import whom, that every package says what it is, names, sizes, scripts,
// and that manuals and documents speak of what is there.
//
// A rule is a function from a tree of files to the places that break it. Each is
// shown to fail on a small tree made for it, and then holds the real one. A place
// that breaks a rule for a good reason is in the rule's table, with the reason.
package layout
