package xtables

import (
	"net/netip"
	"strings"
	"testing"
)

func TestFingerprintsSurviveUserData(t *testing.T) {
	for _, comment := range []string{"", "default/web:http cluster IP", strings.Repeat("long ", 80)} {
		r := Rule{Comment: comment, Do: Action{Verb: Accept}}
		e := r.encode(IPv4)
		b := userData(comment, e.print)
		if len(b) > maxUserData {
			t.Errorf("a comment of %d bytes makes user data of %d, the kernel takes %d", len(comment), len(b), maxUserData)
		}
		if got, ok := printOf(b); !ok || got != e.print {
			t.Errorf("comment of %d bytes: fingerprint %x read back as %x, %v", len(comment), e.print, got, ok)
		}
	}
	for _, foreign := range [][]byte{nil, {0}, {0, 3, 'a', 'b', 0}, {udataFingerprint, 200, 1}, {udataFingerprint, 3, 1, 2, 3}} {
		if _, ok := printOf(foreign); ok {
			t.Errorf("user data %v of someone else's rule is taken for ours", foreign)
		}
	}
}

// Whatever makes two rules different makes their fingerprints different: Sync would not see the change otherwise.
func TestFingerprintsTellRulesApart(t *testing.T) {
	p := netip.MustParsePrefix
	rules := []Rule{
		{}, {Src: p("10.0.0.0/8")}, {Src: p("10.0.0.0/8"), NotSrc: true}, {Src: p("10.0.0.0/9")}, {Dst: p("10.0.0.0/8")},
		{NotDstNet: p("10.0.0.0/8")}, {Proto: 6}, {Proto: 17}, {Proto: 6, DPort: 80}, {Proto: 6, DPort: 81}, {Proto: 132, DPort: 80},
		{SrcLocal: true}, {DstLocal: true}, {Mark: &MarkMatch{Value: 1, Mask: 1}}, {Mark: &MarkMatch{Value: 1, Mask: 1, Not: true}},
		{CTState: New}, {CTState: Invalid}, {Chance: 0.5}, {Chance: 0.25}, {Comment: "a"}, {Comment: "b"},
		{Recent: &Recent{Name: "a", Set: true}}, {Recent: &Recent{Name: "a", Seconds: 1}}, {Recent: &Recent{Name: "a", Seconds: 2}}, {Recent: &Recent{Name: "b", Set: true}},
		{Sets: []SetMatch{{Index: 1, Dirs: []string{"dst"}}}}, {Sets: []SetMatch{{Index: 2, Dirs: []string{"dst"}}}},
		{Sets: []SetMatch{{Index: 1, Dirs: []string{"src"}}}}, {Sets: []SetMatch{{Index: 1, Dirs: []string{"dst"}, Not: true}}}, {Sets: []SetMatch{{Index: 1, Dirs: []string{"dst", "dst"}}}},
		{Do: Action{Verb: Jump, Chain: "A"}}, {Do: Action{Verb: Jump, Chain: "B"}}, {Do: Action{Verb: Accept}}, {Do: Action{Verb: Drop}}, {Do: Action{Verb: Return}},
		{Do: Action{Verb: DNAT, To: netip.MustParseAddrPort("10.0.0.1:80")}}, {Do: Action{Verb: DNAT, To: netip.MustParseAddrPort("10.0.0.1:81")}},
		{Do: Action{Verb: Masquerade}}, {Do: Action{Verb: OrMark, Mark: 1}}, {Do: Action{Verb: XorMark, Mark: 1}}, {Do: Action{Verb: Reject}},
	}
	seen := map[fingerprint]string{}
	for i := range rules {
		for range 2 { // and the same rule has the same one
			e := rules[i].encode(IPv4)
			if was, ok := seen[e.print]; ok && was != rules[i].String() {
				t.Errorf("%q and %q have one fingerprint", was, rules[i])
			}
			seen[e.print] = rules[i].String()
		}
	}
	if len(seen) != len(rules) {
		t.Errorf("%d rules have %d fingerprints", len(rules), len(seen))
	}
}

func TestMessagesSpeakIptables(t *testing.T) {
	r := Rule{Dst: netip.MustParsePrefix("10.96.0.10/32"), Proto: 6, DPort: 80, Comment: "a b", Do: Action{Verb: Jump, Chain: "KUBE-SVC-A"}}
	o := op{verb: opInsert, key: chainKey{"nat", "KUBE-SERVICES"}, text: r.String}
	if got, want := o.String(), `-t nat -I KUBE-SERVICES -d 10.96.0.10/32 -p tcp --dport 80 --comment "a b" -j KUBE-SVC-A`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
