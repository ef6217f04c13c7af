package linearizability

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
)

// Servers that answer linearizable reads from their own state, without asking the leader, are
// found out.
func TestJudgeFindsStaleReads(t *testing.T) {
	p := newPlan(t, firstSeed())
	p.load, p.count, p.rest = loads[0], 3, 200*time.Millisecond
	p.faults = slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return f.name != "partition" && f.name != "slow disk" })
	p.disk.StaleReads = true
	p.dir = filepath.Join(t.TempDir(), "history")
	v, err := p.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if v.violation == nil || !strings.Contains(v.violation.Error(), "linearization") {
		t.Fatalf("seed %d: %d operations with stale reads were found sound (%v)", p.seed, v.operations, v.violation)
	}
	if _, err := filepath.Glob(filepath.Join(v.dir, "report", "client-*", "operations.json")); err != nil {
		t.Errorf("the history was not kept: %v", err)
	}
}

// A sound history, with one thing in it changed to what a broken server would have done, is
// found out, for each guarantee.
func TestJudgeFindsEachBrokenGuarantee(t *testing.T) {
	p := newPlan(t, firstSeed())
	p.load, p.count, p.rest = loads[1], 0, 3*time.Second
	p.dir = filepath.Join(t.TempDir(), "history")
	lg, done, err := prepare(p)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	var v verdict
	sound, err := p.observe(t.Context(), lg, &v)
	if err != nil || v.violation != nil {
		t.Fatal(err, v.violation)
	}
	if _, err := sound.validate(lg, false); err != nil {
		t.Fatalf("the history is not sound as it is: %v", err)
	}

	for _, c := range []struct {
		name string
		want string // in the error
		// change breaks the history; false when it holds nothing to break.
		change func(h *history) bool
	}{
		{"a read misses a write", "linearization", func(h *history) bool {
			return h.eachRead(func(op porcupine.Operation, req model.EtcdRequest, out *model.MaybeEtcdResponse) bool {
				// What somebody had been answered before the read began cannot be missed.
				answered := h.answeredBefore(op.Call)
				if req.Range.Revision != 0 || answered < 50 {
					return false
				}
				out.Revision = answered - 1
				return true
			})
		}},
		{"an old revision reads otherwise", "serializable", func(h *history) bool {
			return h.eachRead(func(_ porcupine.Operation, req model.EtcdRequest, out *model.MaybeEtcdResponse) bool {
				if req.Range.Revision == 0 || req.Range.Revision == out.Revision || out.Range == nil || len(out.Range.KVs) == 0 {
					return false
				}
				r := *out.Range
				r.KVs = slices.Clone(r.KVs)
				r.KVs[0].ModRevision--
				out.Range = &r
				return true
			})
		}},
		{"an event is lost", "Reliable", func(h *history) bool {
			return h.eachEvents(func(w *model.WatchOperation, i int) bool {
				if i == 0 || i == len(w.Responses)-1 || len(w.Responses[i-1].Events) == 0 || len(w.Responses[i+1].Events) == 0 {
					return false
				}
				w.Responses = slices.Delete(w.Responses, i, i+1)
				return true
			})
		}},
		{"the first event is lost", "Resumable", func(h *history) bool {
			return h.eachEvents(func(w *model.WatchOperation, i int) bool {
				if w.Request.Revision == 0 || len(w.Responses) < 3 {
					return false
				}
				w.Responses = slices.Delete(w.Responses, i, i+1)
				return true
			})
		}},
		{"events change places", "Ordered", func(h *history) bool {
			return h.eachEvents(func(w *model.WatchOperation, i int) bool {
				if i == 0 || len(w.Responses[i-1].Events) == 0 {
					return false
				}
				w.Responses[i], w.Responses[i-1] = w.Responses[i-1], w.Responses[i]
				return true
			})
		}},
		{"an event comes twice", "Unique", func(h *history) bool {
			return h.eachEvents(func(w *model.WatchOperation, i int) bool {
				es := &w.Responses[i].Events
				*es = append(*es, (*es)[len(*es)-1])
				return true
			})
		}},
		{"the events of a revision are split", "Atomic", func(h *history) bool {
			return h.eachEvents(func(w *model.WatchOperation, i int) bool {
				es := w.Responses[i].Events
				if len(es) < 2 || es[0].Revision != es[len(es)-1].Revision {
					return false
				}
				rest := w.Responses[i]
				w.Responses[i].Events, rest.Events = es[:1:1], es[1:]
				w.Responses = slices.Insert(w.Responses, i+1, rest)
				return true
			})
		}},
		{"progress is told too early", "Bookmarkable", func(h *history) bool {
			return h.eachEvents(func(w *model.WatchOperation, i int) bool {
				early := model.WatchResponse{IsProgressNotify: true, Revision: w.Responses[i].Events[0].Revision}
				w.Responses = slices.Insert(w.Responses, i, early)
				return true
			})
		}},
		{"a previous value is wrong", "prevValue", func(h *history) bool {
			return h.eachEvents(func(w *model.WatchOperation, i int) bool {
				e := &w.Responses[i].Events[0]
				if e.PrevValue == nil {
					return false
				}
				e.PrevValue.Version++
				return true
			})
		}},
		{"an update looks like a creation", "IsCreate", func(h *history) bool {
			return h.eachEvents(func(w *model.WatchOperation, i int) bool {
				e := &w.Responses[i].Events[0]
				if e.Type != model.PutOperation || e.IsCreate || i == 0 || len(w.Responses[i-1].Events) == 0 {
					return false
				}
				e.IsCreate = true
				return true
			})
		}},
		{"an event was not asked for", "filter", func(h *history) bool {
			return h.eachEvents(func(w *model.WatchOperation, i int) bool {
				w.Responses[i].Events[0].Key = "other"
				return w.Request.Key != ""
			})
		}},
		{"a lease ends too early", "no client revoked it", func(h *history) bool {
			h.log.requests = append(h.log.requests, model.EtcdRequest{Type: model.LeaseRevoke, LeaseRevoke: &model.LeaseRevokeRequest{LeaseID: 1}})
			return true
		}},
		{"a write is not in the log", "", func(h *history) bool {
			for i, r := range h.log.requests {
				if i > 20 && r.Type == model.Txn && len(r.Txn.Conditions) == 0 && r.Txn.OperationsOnSuccess[0].Type == model.PutOperation {
					h.log.requests = slices.Delete(h.log.requests, i, i+1)
					return true
				}
			}
			return false
		}},
	} {
		h := sound.clone(t)
		if !c.change(&h) {
			t.Errorf("%s: nothing in the history could be changed so", c.name)
			continue
		}
		if _, err := h.validate(lg, false); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the validators said %v, want an error with %q", c.name, err, c.want)
		}
	}
}

// clone copies what the changes above touch.
func (h history) clone(t *testing.T) history {
	t.Helper()
	out := history{log: exported{requests: slices.Clone(h.log.requests)}}
	for _, r := range h.reports {
		n := report.ClientReport{ClientID: r.ClientID, KeyValue: slices.Clone(r.KeyValue)}
		b, err := json.Marshal(r.Watch)
		if err == nil {
			err = json.Unmarshal(b, &n.Watch)
		}
		if err != nil {
			t.Fatal(err)
		}
		out.reports = append(out.reports, n)
	}
	return out
}

// eachRead offers the answers of reads that succeeded until one was changed.
func (h *history) eachRead(change func(porcupine.Operation, model.EtcdRequest, *model.MaybeEtcdResponse) bool) bool {
	for _, r := range h.reports {
		for i := range r.KeyValue {
			var op *porcupine.Operation = &r.KeyValue[i]
			req, out := op.Input.(model.EtcdRequest), op.Output.(model.MaybeEtcdResponse)
			if req.Type == model.Range && out.Error == "" && out.ClientError == "" && change(*op, req, &out) {
				op.Output = out
				return true
			}
		}
	}
	return false
}

// answeredBefore is the highest revision in an answer that had arrived at a time.
func (h *history) answeredBefore(at int64) (revision int64) {
	for _, r := range h.reports {
		for _, op := range r.KeyValue {
			if out := op.Output.(model.MaybeEtcdResponse); op.Return < at && out.Error == "" && out.ClientError == "" {
				revision = max(revision, out.Revision)
			}
		}
	}
	return revision
}

// eachEvents offers the answers with events, by watch and index, until one was changed.
func (h *history) eachEvents(change func(*model.WatchOperation, int) bool) bool {
	for _, r := range h.reports {
		for w := range r.Watch {
			for i := range r.Watch[w].Responses {
				if len(r.Watch[w].Responses[i].Events) > 0 && change(&r.Watch[w], i) {
					return true
				}
			}
		}
	}
	return false
}
