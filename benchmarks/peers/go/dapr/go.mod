module reconsume.dev/peers/dapr

go 1.22

require (
	github.com/dapr/components-contrib v1.14.0-rc.6
	github.com/dapr/dapr v1.14.0
	github.com/dapr/kit v0.13.1-0.20240724000121-26b564d9d0f5
)
