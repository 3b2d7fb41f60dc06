package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/penstock-io/penstock/share"
)

// stream writes one name to w.
func (c *client) stream(ctx context.Context, w io.Writer, d *display, o getOptions, name string) (event, error) {
	r := event{Name: name}
	c.begin(name)
	opt := share.StreamOptions{Digest: o.digest != "", Expect: expected(o.digest), Progress: c.progress(d)}
	f, err := share.Stream(ctx, c.conn(), name, w, opt)
	took, rate := d.end()
	if err != nil {
		if wrong, ok := errors.AsType[*share.DigestError](err); ok {
			r.SHA256 = hex.EncodeToString(wrong.Got[:])
			err = &worded{fmt.Sprintf("%s: the SHA-256 is %s, which is not the expected one", share.Printable(name),
				r.SHA256), err}
		}
		return r, err
	}
	r.fetched(f, took, rate)
	d.summary(name, r)
	return r, nil
}
