#!/usr/bin/env bash
# Generates the Go code of api/**/*.proto with Debian's protoc and plugins pinned here. Run by `make generate`;
# `make check-generate` fails when the committed code differs.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh
need protoc protobuf-compiler
need_file /usr/include/google/protobuf/timestamp.proto libprotobuf-dev
bin=$(cache_dir)/bin
go_tool google.golang.org/protobuf/cmd/protoc-gen-go v1.36.12
go_tool google.golang.org/grpc/cmd/protoc-gen-go-grpc v1.6.2
for f in $(find api -name '*.proto'); do
  PATH="$bin:$PATH" protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative "$f"
done
