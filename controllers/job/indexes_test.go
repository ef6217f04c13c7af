package job

import "testing"

func TestIndexes(t *testing.T) {
	for _, c := range []struct {
		text  string
		limit int
		add   []int
		want  string
		n     int
	}{
		{"", 10, nil, "", 0},
		{"", 10, []int{3, 1, 2}, "1-3", 3},
		{"1,3-5,7", 10, nil, "1,3-5,7", 5},
		{"1,3-5,7", 10, []int{2, 6}, "1-7", 7},
		{"1,3-5,7", 5, nil, "1,3,4", 3},
		{"0-2", 10, []int{1, 1, 2}, "0-2", 3},
		{"0,1", 10, []int{9}, "0,1,9", 3},
		{"nonsense,4,-1,5-3", 10, nil, "4", 1},
	} {
		got := parseIndexes(c.text, c.limit).with(c.add...)
		if got.String() != c.want || got.len() != c.n {
			t.Errorf("%q below %d with %v: %q of %d, want %q of %d", c.text, c.limit, c.add, got, got.len(), c.want, c.n)
		}
		for i := range c.limit {
			if in := parseIndexes(c.want, c.limit).common(indexes{{i, i}}) == 1; in != got.has(i) {
				t.Errorf("%q: has(%d) is %v", got, i, got.has(i))
			}
		}
	}
}
