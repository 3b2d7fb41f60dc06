// Package s3 uploads whole files to a bucket of S3, or of a store that speaks its protocol. A key
// appears with all of its bytes or not at all, and no key is replaced.
package s3

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/penstock-io/penstock/internal/s3/place"
	"github.com/penstock-io/penstock/internal/sys"
)

const (
	partSize  = 16 << 20
	maxParts  = 10000
	inFlight  = 4                // parts
	limit     = 15 * time.Minute // of a request with a part, and of those around them
	pauses    = 4                // between tries of a request: 250 ms, doubled
	askLimit  = 10 * time.Second // of asking whether the bucket is there
	roleLimit = 2 * time.Second  // of a request of credentials to the machine's own service
	markName  = "Penstock-File"  // metadata of an object: the size and the time of its file
)

// A Client uploads to one place.
type Client struct {
	bucket, prefix string
	core           *minio.Core
	creds          *credentials.Credentials
}

// New takes the endpoint, the region and the credentials from where other programs for S3 have
// them: the environment, the files in ~/.aws, a web identity, the role of the machine. It sends no
// request.
func New(to string) (*Client, error) {
	bucket, prefix, err := place.Parse(to)
	if err != nil {
		return nil, fmt.Errorf("s3: %w", err)
	}
	u, err := url.Parse(cmp.Or(os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"),
		"https://s3.amazonaws.com"))
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" { // its value may hold a password
		return nil, errors.New("s3: AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL is no endpoint: expected https://HOST:PORT, " +
			"or http:// where everyone on the way may read the packets")
	}
	c := &Client{bucket: bucket, prefix: prefix, creds: credentials.NewChainCredentials([]credentials.Provider{
		&credentials.EnvAWS{}, &credentials.FileAWSCredentials{},
		&credentials.IAM{Client: &http.Client{Timeout: roleLimit}}})}
	// Its own tries share the reader of the body with the try before, which may still read.
	c.core, err = minio.NewCore(u.Host, &minio.Options{Creds: c.creds, Secure: u.Scheme == "https", MaxRetries: 1,
		Region: cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"))})
	if err != nil {
		return nil, fmt.Errorf("s3: AWS_ENDPOINT_URL: %w", err)
	}
	return c, nil
}

// String is where files go.
func (c *Client) String() string { return "s3://" + c.bucket + "/" + c.prefix }

var errNoCredentials = errors.New("no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them " +
	"into ~/.aws/credentials, or give this machine a role")

// passing reports whether an error may mend itself: a connection, or a store that is too busy.
func passing(err error) bool {
	r, answered := errors.AsType[minio.ErrorResponse](err)
	return !answered && !errors.Is(err, errNoCredentials) || r.StatusCode >= 500 ||
		r.StatusCode == http.StatusTooManyRequests
}

// again tries a request until it succeeds, fails for good, or has failed often.
func again(ctx context.Context, request func(context.Context) error) error {
	for n := 0; ; n++ {
		short, cancel := context.WithTimeout(ctx, limit)
		err := request(short)
		cancel()
		if err == nil || n == pauses || !passing(err) || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(250 * time.Millisecond << n):
		case <-ctx.Done():
			return err
		}
	}
}

// Check asks the store whether the bucket is there and can be listed. A store that is down or too
// busy is no error.
func (c *Client) Check() error {
	if err := c.probe(); err != nil && !passing(err) {
		return c.explain(err)
	}
	return nil
}

func (c *Client) probe() error {
	ctx, cancel := context.WithTimeout(context.Background(), askLimit)
	defer cancel()
	v, err := c.creds.GetWithContext(&credentials.CredContext{Client: &http.Client{Timeout: roleLimit}, Context: ctx})
	if err == nil && v.AccessKeyID == "" {
		err = errNoCredentials
	}
	if err != nil {
		return err
	}
	return (<-c.core.Client.ListObjects(ctx, c.bucket, minio.ListObjectsOptions{Prefix: c.prefix, MaxKeys: 1})).Err
}

// explain says what was wrong with what, and how to mend it. What the store says it quotes.
func (c *Client) explain(err error) error {
	r, answered := errors.AsType[minio.ErrorResponse](err)
	hint := ""
	switch {
	case err == nil:
		return nil
	case !answered:
		return fmt.Errorf("%v: %w", c, err)
	case r.Code == minio.NoSuchBucket:
		hint = ": make the bucket, or correct its name or AWS_ENDPOINT_URL"
	case slices.Contains([]string{"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken"},
		r.Code):
		hint = ": the session token has expired: renew ~/.aws/credentials, or begin again with new credentials"
	case r.Code == minio.InvalidAccessKeyID, r.Code == minio.SignatureDoesNotMatch:
		hint = ": correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws/credentials"
	case r.StatusCode == http.StatusForbidden:
		hint = ": the credentials need s3:ListBucket and s3:ListBucketMultipartUploads for the bucket, and " +
			"s3:GetObject, s3:PutObject and s3:AbortMultipartUpload for what is in it"
	case r.StatusCode/100 == 3, r.Code == minio.AuthorizationHeaderMalformed:
		hint = ": set AWS_REGION to the bucket's region"
	}
	return fmt.Errorf("%v: the store says %.200q (%.200q)%s", c, r.Code, r.Message, hint)
}

// Upload returns nil when the key of the file at path is there with all its bytes, also from
// before. It puts the file's time into the key when the bucket has another file of that name. It
// follows no link: who can write to the directory must not choose what goes up.
func (c *Client) Upload(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|sys.ONoFollow|sys.ONonblock, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.Join(err, fmt.Errorf("%s is no regular file", path))
	}
	return c.explain(c.upload(context.Background(), f))
}

func (c *Client) upload(ctx context.Context, f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	ext, at := path.Ext(info.Name()), info.ModTime().UnixNano()
	mark, stem := fmt.Sprintf("%d-%d", info.Size(), at), c.prefix+strings.TrimSuffix(info.Name(), ext)
	for _, key := range []string{stem + ext, fmt.Sprintf("%s-%d%s", stem, at, ext)} {
		var was minio.ObjectInfo
		err := again(ctx, func(ctx context.Context) (err error) {
			was, err = c.core.StatObject(ctx, c.bucket, key, minio.StatObjectOptions{})
			return err
		})
		if minio.ToErrorResponse(err).Code == minio.NoSuchKey {
			return c.put(ctx, f, info.Size(), key, minio.PutObjectOptions{PartSize: partSize,
				UserMetadata: map[string]string{markName: mark}})
		}
		if err != nil { // the answer to HEAD has no text that says why, that of a list has
			return cmp.Or(c.probe(), err)
		}
		if m := was.UserMetadata[markName]; was.Size == info.Size() && (m == mark || m == "") {
			return nil
		}
	}
	return fmt.Errorf("the bucket has other files of the name %s%s: rename this one", stem, ext)
}

func (c *Client) put(ctx context.Context, f io.ReaderAt, size int64, key string, o minio.PutObjectOptions) error {
	// There is nothing to sign in an empty body. versitygw leaves the signature of its last chunk
	// on the connection, in front of the next request.
	o.DisableContentSha256 = size == 0
	if size <= partSize {
		return again(ctx, func(ctx context.Context) error {
			_, err := c.core.Client.PutObject(ctx, c.bucket, key, io.NewSectionReader(f, 0, size), size, o)
			return err
		})
	}
	var id string
	err := again(ctx, func(ctx context.Context) (err error) {
		// What a killed run has left goes. Who may not list that may upload all the same.
		left, _ := c.core.ListMultipartUploads(ctx, c.bucket, key, "", "", "", 1000)
		for _, u := range left.Uploads {
			if u.Key == key {
				_ = c.core.AbortMultipartUpload(ctx, c.bucket, key, u.UploadID)
			}
		}
		id, err = c.core.NewMultipartUpload(ctx, c.bucket, key, o)
		return err
	})
	if err != nil {
		return err
	}
	parts, err := c.parts(ctx, f, size, key, id)
	if err == nil {
		err = again(ctx, func(ctx context.Context) error {
			_, err := c.core.CompleteMultipartUpload(ctx, c.bucket, key, id, parts, minio.PutObjectOptions{})
			return err
		})
	}
	if err == nil {
		return nil
	}
	e := again(ctx, func(ctx context.Context) error { return c.core.AbortMultipartUpload(ctx, c.bucket, key, id) })
	if e != nil && minio.ToErrorResponse(e).Code != minio.NoSuchUpload {
		err = fmt.Errorf("%w (and the parts of %q stay in the bucket: %w)", err, key, e)
	}
	return err
}

// parts sends the parts of an upload, and returns when none is under way any more.
func (c *Client) parts(ctx context.Context, f io.ReaderAt, size int64, key, id string) ([]minio.CompletePart, error) {
	each := max(partSize, (size+maxParts-1)/maxParts)
	parts := make([]minio.CompletePart, (size+each-1)/each)
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range inFlight {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(parts)) && ctx.Err() == nil; i = next.Add(1) - 1 {
				n := min(each, size-i*each)
				err := again(ctx, func(ctx context.Context) error {
					p, err := c.core.PutObjectPart(ctx, c.bucket, key, id, int(i+1), io.NewSectionReader(f, i*each, n),
						n,
						minio.PutObjectPartOptions{})
					parts[i] = minio.CompletePart{PartNumber: int(i + 1), ETag: p.ETag}
					return err
				})
				if err != nil {
					fail(err)
				}
			}
		})
	}
	wg.Wait()
	return parts, context.Cause(ctx)
}
