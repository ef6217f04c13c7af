// Command conformance runs Kubernetes' own conformance tests against the cluster of `make up`: upstream's e2e.test and
// ginkgo, built from the modules that go.mod requires, with the images of images/build conformance on every node.
//
//	conformance -bin DIR -images DIR -out DIR [-focus REGEXP] [-skip REGEXP] [-resume] [-quick]
//
// It selects the tests itself, runs those that need the cluster for themselves apart, one at a time, and gives each
// that failed a second attempt alone, since a busy machine runs into upstream's timeouts; the summary names those that
// needed it. expected.txt lists the tests that are known to fail, each under its cause. One that is listed and passes
// fails the run, as one does that is not listed and fails.
//
// The directory of -out holds summary.txt, junit.xml, failed/ (what each failed test said), results.json (what -resume
// goes on from), and for each run of ginkgo its whole output and upstream's own reports. The last line on the screen is
// "conformance: N passed, N failed, N skipped of N selected", where a test that was selected and not run is skipped.
// The exit code is 0 when everything went as expected.txt says, 1 when not, 2 when nothing could be run.
package main
