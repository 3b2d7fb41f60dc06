package place

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for in, want := range map[string][2]string{
		"s3://abc":         {"abc", ""},
		"s3://abc/":        {"abc", ""},
		"s3://abc/d":       {"abc", "d/"},
		"s3://abc/d/e f%/": {"abc", "d/e f%/"},
	} {
		if bucket, prefix, err := Parse(in); err != nil || bucket != want[0] || prefix != want[1] {
			t.Errorf("%s: %q, %q, %v", in, bucket, prefix, err)
		}
	}
	for _, in := range []string{"", "abc", "s3:/abc", "s3://", "s3://a_b/c", "s3://ABC", "s3://abc/d//e",
		"s3://abc/../d",
		"s3://abc/.", "https://abc", "s3://abc/\xff", "s3://abc/" + strings.Repeat("x", maxPrefix)} {
		if bucket, prefix, err := Parse(in); err == nil {
			t.Errorf("%q: %q, %q", in, bucket, prefix)
		}
	}
}
