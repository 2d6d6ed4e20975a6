module github.com/gemel-storage/gemel/hack/kind/runtime

go 1.26.0
