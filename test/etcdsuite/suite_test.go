package etcdsuite

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// fullEnv asks for everything; it names the directory that gets the output of
	// each test, or is "1".
	fullEnv = "TRIPOD_ETCD_SUITE"
	// onlyEnv is a regular expression that the names of functions must match.
	onlyEnv = "TRIPOD_ETCD_SUITE_RUN"
	// perFunction bounds one test function of etcd's; a few sleep for minutes, and TestAuthority runs etcdctl two
	// thousand times.
	perFunction = 20 * time.Minute
	// inParallel is how many functions run at a time: they wait more than they work.
	inParallel = 4

	module = "go.etcd.io/etcd/tests/v3"
)

// packages are etcd's, with the functions that look at what clients see, and
// those of them that always run.
var packages = []struct {
	name        string
	all, always *regexp.Regexp
}{
	{"common", regexp.MustCompile(`^Test`), regexp.MustCompile(`^Test(KVPut|TxnSucc|LeaseGrantRevoke|Watch|MemberList|UserList|AuthTxn)$`)},
	{"e2e", regexp.MustCompile(`^Test(CurlV3|CtlV3|AuthCluster|Auth_CVE|ConnectionMultiplexing|HTTP|V3Metrics|MemberReplace|RemoveNonExistingMember|ClusterVersion|Issue6361|` +
		`RestoreCompactionRevBump|LeaseRevoke|Watch|DeleteEventDrop|StartWatcherFromCompactedRevision|ResumeCompaction|RuntimeReconfig|GracefulShutdown|` +
		`EtcdMultiPeer|EtcdAdvertiseClientUnix|EtcdTLSVersion|DefragNoSpace|TxnRangeConsistency|NoMetricsMissing|Reproduce|Issue20271|ConnectionReject)`),
		regexp.MustCompile(`^Test(CurlV3KVTxn|CtlV3Elect|CurlV3Watch)$`)},
}

func goTool(t *testing.T, args ...string) string {
	t.Helper()
	c := exec.Command("go", args...)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return strings.TrimSpace(string(out))
}

// room is a directory laid out as etcd's tests expect their repository.
type room struct{ dir, bin, fixtures string }

func newRoom(t *testing.T) room {
	t.Helper()
	r := room{dir: t.TempDir()}
	r.bin = filepath.Join(r.dir, "bin")
	r.fixtures = filepath.Join(goTool(t, "list", "-m", "-f", "{{.Dir}}", module), "fixtures")
	if err := os.Symlink(r.fixtures, filepath.Join(r.dir, "fixtures")); err != nil {
		t.Fatal(err)
	}
	for _, p := range packages {
		if err := os.Mkdir(filepath.Join(r.dir, p.name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	goTool(t, "build", "-o", filepath.Join(r.bin, "etcd"), "github.com/tripod-cluster/tripod/test/etcdserver")
	goTool(t, "build", "-o", filepath.Join(r.bin, "etcdctl"), "go.etcd.io/etcd/etcdctl/v3")
	goTool(t, "build", "-o", filepath.Join(r.bin, "etcdutl"), "go.etcd.io/etcd/etcdutl/v3")
	return r
}

// alone runs a program in a network of its own, where one can be made: etcd's tests
// use fixed ports.
func alone(ctx context.Context, args ...string) *exec.Cmd {
	if os.Geteuid() == 0 {
		args = append([]string{"unshare", "-n", "sh", "-c", `ip link set lo up && exec "$0" "$@"`}, args...)
	}
	return exec.CommandContext(ctx, args[0], args[1:]...)
}

// run runs one function of etcd's tests and returns its output.
func (r room) run(pkg, test, function string, env ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), perFunction+time.Minute)
	defer cancel()
	c := alone(ctx, test, "-bin-dir", r.bin, "-test.v", "-test.timeout", perFunction.String(), "-test.run", "^"+function+"$")
	c.Dir = filepath.Join(r.dir, pkg)
	c.Env = append(os.Environ(), env...)
	return c.CombinedOutput()
}

// job is one function of etcd's tests, and how it went.
type job struct {
	pkg, test, function string
	env                 []string
	log                 string // the file that gets the output, when set

	output   []byte
	outcome  outcome
	took     time.Duration
	attempts int
}

func (r room) do(j *job) {
	began := time.Now()
	output, ended := r.run(j.pkg, j.test, j.function, j.env...)
	j.output, j.outcome = output, parseOutput(output, j.function, ended)
	j.took += time.Since(began)
	j.attempts++
}

// tell prints how a job went, and keeps its output.
func (j *job) tell() {
	if j.log != "" {
		if err := os.WriteFile(j.log, j.output, 0o644); err != nil {
			fmt.Println(err)
		}
	}
	verdict := "ok"
	if len(j.outcome.failed) > 0 {
		verdict = "FAILED " + strings.Join(j.outcome.failed, " ")
	}
	fmt.Printf("%s.%s: %s (%v, attempt %d)\n", j.pkg, j.function, verdict, j.took.Round(time.Second), j.attempts)
}

// doAll runs jobs a few at a time. Some of etcd's tests give a busy machine little time: those that fail and
// should not run once more, alone.
func (r room) doAll(jobs []*job, width int, expected []expectation) {
	todo := make(chan *job)
	var wg sync.WaitGroup
	for range width {
		wg.Go(func() {
			for j := range todo {
				r.do(j)
				j.tell()
			}
		})
	}
	for _, j := range jobs {
		todo <- j
	}
	close(todo)
	wg.Wait()
	for _, j := range jobs {
		if len(judge([]string{j.function}, j.outcome.failed, expected)) > 0 && len(j.outcome.failed) > 0 {
			r.do(j)
			j.tell()
		}
	}
}

// jobs builds etcd's tests and lists the functions that are to run.
func (r room) jobs(t *testing.T, full string, only *regexp.Regexp) (jobs []*job) {
	t.Helper()
	for _, p := range packages {
		test := filepath.Join(r.bin, p.name+".test")
		goTool(t, "test", "-c", "-vet=off", "-tags", "e2e", "-o", test, module+"/"+p.name)
		list := exec.Command(test, "-test.list", ".")
		list.Dir = filepath.Join(r.dir, p.name)
		names, err := list.Output()
		if err != nil {
			t.Fatalf("list the tests of %s: %v", p.name, err)
		}
		for _, function := range strings.Fields(string(names)) {
			if full == "" && !p.always.MatchString(function) || !p.all.MatchString(function) || !only.MatchString(function) || function == "TestMain" {
				continue
			}
			j := &job{pkg: p.name, test: test, function: function}
			switch full {
			case "":
				j.env = []string{"E2E_TEST_MINIMAL=true"}
			case "1":
			default:
				j.log = filepath.Join(full, function+".log")
			}
			jobs = append(jobs, j)
		}
	}
	return jobs
}

// TestEtcdsOwn runs etcd's tests.
func TestEtcdsOwn(t *testing.T) {
	full := os.Getenv(fullEnv)
	only, err := regexp.Compile(os.Getenv(onlyEnv))
	if err != nil {
		t.Fatalf("%s: %v", onlyEnv, err)
	}
	f, err := os.Open("expected.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	expected, err := parseExpected(f)
	if err != nil {
		t.Fatal(err)
	}
	r := newRoom(t)
	jobs := r.jobs(t, full, only)
	width := 1
	if os.Geteuid() == 0 {
		width = inParallel // each has ports of its own
	}
	r.doAll(jobs, width, expected)

	var functions, failed []string
	ran, skipped, again := 0, 0, 0
	for _, j := range jobs {
		functions, failed = append(functions, j.function), append(failed, j.outcome.failed...)
		ran, skipped, again = ran+j.outcome.ran, skipped+j.outcome.skipped, again+j.attempts-1
		if wrong := judge([]string{j.function}, j.outcome.failed, expected); len(wrong) > 0 && full == "" {
			t.Logf("%s", j.output)
		}
	}
	fmt.Printf("etcd's own tests: %d functions (%d of them at the second attempt), %d tests run, %d skipped by themselves, %d failed\n",
		len(functions), again, ran, skipped, len(failed))
	for _, e := range expected {
		if slices.ContainsFunc(failed, func(f string) bool { return within(f, e.test) }) {
			fmt.Printf("cannot pass: %s: %s\n", e.test, e.why)
		}
	}
	for _, wrong := range judge(functions, failed, expected) {
		t.Error(wrong)
	}
}

// TestClientExamples runs the examples of etcd's Go client on three servers. Their
// main function, which would start servers of etcd's, is replaced.
func TestClientExamples(t *testing.T) {
	r := newRoom(t)
	examples := filepath.Join(filepath.Dir(r.fixtures), "integration", "clientv3", "examples")
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(examples, "example*_test.go"))
	if err != nil || len(files) < 5 {
		t.Fatalf("the examples in %s: %d files, %v", examples, len(files), err)
	}
	// A package of this module that is there for the build alone.
	replace := map[string]string{filepath.Join(here, "examples", "main_test.go"): filepath.Join(here, "testdata", "examples_main_test.go.txt")}
	for _, f := range files {
		replace[filepath.Join(here, "examples", filepath.Base(f))] = f
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(r.dir, "overlay.json")
	if err := os.WriteFile(overlay, b, 0o644); err != nil {
		t.Fatal(err)
	}
	test := filepath.Join(r.bin, "examples.test")
	goTool(t, "test", "-c", "-vet=off", "-overlay", overlay, "-o", test, "./examples")

	endpoints := r.cluster(t, 3)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, test, "-test.v")
	c.Env = append(os.Environ(), "EXAMPLE_ENDPOINTS="+strings.Join(endpoints, ","))
	out, err := c.CombinedOutput()
	if n := bytes.Count(out, []byte("\n--- PASS: Example")); err != nil || n < 20 {
		t.Errorf("%d examples passed, %v\n%s", n, err, out)
	}
}

// cluster starts servers on free ports and returns their endpoints.
func (r room) cluster(t *testing.T, n int) (endpoints []string) {
	t.Helper()
	var listeners []net.Listener
	port := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l)
		return "http://" + l.Addr().String()
	}
	var peers, clients, initial []string
	for i := range n {
		peers, clients = append(peers, port()), append(clients, port())
		initial = append(initial, fmt.Sprintf("m%d=%s", i, peers[i]))
	}
	for _, l := range listeners {
		l.Close()
	}
	for i := range n {
		logs := &lockedBuffer{}
		c := exec.Command(filepath.Join(r.bin, "etcd"), "--name", fmt.Sprintf("m%d", i), "--data-dir", t.TempDir(),
			"--listen-client-urls", clients[i], "--advertise-client-urls", clients[i],
			"--listen-peer-urls", peers[i], "--initial-advertise-peer-urls", peers[i],
			"--initial-cluster", strings.Join(initial, ","), "--strict-reconfig-check=false", "--watch-progress-notify-interval", "200ms")
		c.Stderr = logs
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			c.Process.Kill()
			c.Wait()
			if t.Failed() {
				t.Logf("server %d:\n%s", i, logs)
			}
		})
		defer logs.await(t, "ready to serve client requests")
	}
	for _, c := range clients {
		endpoints = append(endpoints, strings.TrimPrefix(c, "http://"))
	}
	return endpoints
}
