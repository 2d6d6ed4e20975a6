// Package grpcerr gives errors their gRPC codes.
package grpcerr

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Code says which code a class of errors has.
type Code struct {
	Err  error
	Code codes.Code
}

// Status turns err into a status with the code of the first class in table that it belongs to;
// after the table an ended context has its own codes, and the rest is Internal. nil and what is a
// status already are returned as they are.
func Status(err error, table []Code) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	for _, m := range table {
		if errors.Is(err, m.Err) {
			return status.Error(m.Code, err.Error())
		}
	}
	code := codes.Internal
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	}
	return status.Error(code, err.Error())
}
