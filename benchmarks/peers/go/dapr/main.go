// Dapr's runtime as `daprd` runs it on a machine of its own, with Kafka as the one component that it knows.
//
// `daprd` itself is built with a hundred components, whose modules take gigabytes. What is here of its options is what
// the bench sets; all else is as `daprd` has it.
package main

import (
	"context"
	"log"
	"os"

	"github.com/dapr/components-contrib/pubsub/kafka"
	"github.com/dapr/dapr/cmd/daprd/options"
	"github.com/dapr/dapr/pkg/components/bindings"
	"github.com/dapr/dapr/pkg/components/configuration"
	"github.com/dapr/dapr/pkg/components/crypto"
	"github.com/dapr/dapr/pkg/components/lock"
	"github.com/dapr/dapr/pkg/components/middleware/http"
	"github.com/dapr/dapr/pkg/components/nameresolution"
	"github.com/dapr/dapr/pkg/components/pubsub"
	"github.com/dapr/dapr/pkg/components/secretstores"
	"github.com/dapr/dapr/pkg/components/state"
	"github.com/dapr/dapr/pkg/components/wfbackend"
	"github.com/dapr/dapr/pkg/components/workflows"
	"github.com/dapr/dapr/pkg/healthz"
	"github.com/dapr/dapr/pkg/metrics"
	"github.com/dapr/dapr/pkg/modes"
	"github.com/dapr/dapr/pkg/runtime"
	"github.com/dapr/dapr/pkg/runtime/registry"
	"github.com/dapr/dapr/pkg/security"
	"github.com/dapr/kit/concurrency"
	"github.com/dapr/kit/logger"
	"github.com/dapr/kit/signals"
)

func main() {
	opts, err := options.New(os.Args[1:])
	if err != nil {
		log.Fatal(err)
	}
	opts.Logger.SetAppID(opts.AppID)
	if err := logger.ApplyOptionsToLoggers(&opts.Logger); err != nil {
		log.Fatal(err)
	}
	ctx, health := signals.Context(), healthz.New()
	guard, err := security.New(ctx, security.Options{
		SentryAddress: opts.SentryAddress, ControlPlaneTrustDomain: opts.ControlPlaneTrustDomain,
		ControlPlaneNamespace: opts.ControlPlaneNamespace, TrustAnchors: opts.TrustAnchors, AppID: opts.AppID,
		MTLSEnabled: opts.EnableMTLS, Mode: modes.DaprMode(opts.Mode), Healthz: health,
	})
	if err != nil {
		log.Fatal(err)
	}
	run := func(ctx context.Context) error {
		handler, err := guard.Handler(ctx)
		if err != nil {
			return err
		}
		config := configOf(opts, health)
		config.Security = handler
		made, err := runtime.FromConfig(ctx, config)
		if err != nil {
			return err
		}
		return made.Run(ctx)
	}
	if err := concurrency.NewRunnerManager(guard.Run, run).Run(ctx); err != nil {
		log.Fatal(err)
	}
}

func configOf(opts *options.Options, health healthz.Healthz) *runtime.Config {
	return &runtime.Config{
		AppID: opts.AppID, AllowedOrigins: opts.AllowedOrigins, ResourcesPath: opts.ResourcesPath,
		AppProtocol: opts.AppProtocol, Mode: opts.Mode, DaprHTTPPort: opts.DaprHTTPPort,
		DaprInternalGRPCPort: opts.DaprInternalGRPCPort, DaprAPIGRPCPort: opts.DaprAPIGRPCPort,
		DaprInternalGRPCListenAddress: opts.DaprInternalGRPCListenAddress,
		DaprAPIListenAddresses:        opts.DaprAPIListenAddresses, DaprPublicPort: opts.DaprPublicPort,
		DaprPublicListenAddress: opts.DaprPublicListenAddress, ApplicationPort: opts.AppPort,
		ProfilePort: opts.ProfilePort, AppMaxConcurrency: opts.AppMaxConcurrency,
		MaxRequestSize: opts.MaxRequestSize, ReadBufferSize: opts.ReadBufferSize,
		DaprGracefulShutdownSeconds:  opts.DaprGracefulShutdownSeconds,
		DisableBuiltinK8sSecretStore: opts.DisableBuiltinK8sSecretStore,
		AppHealthCheckPath:           opts.AppHealthCheckPath, AppHealthProbeInterval: opts.AppHealthProbeInterval,
		AppHealthProbeTimeout: opts.AppHealthProbeTimeout, AppHealthThreshold: opts.AppHealthThreshold,
		AppChannelAddress: opts.AppChannelAddress, Config: opts.Config, Registry: components(), Healthz: health,
		Metrics: metrics.Options{
			Enabled: opts.Metrics.Enabled(), Port: opts.Metrics.Port(), Namespace: metrics.DefaultMetricNamespace,
			Log: logger.NewLogger("dapr.runtime"), Healthz: health,
		},
	}
}

// components has the registries of all kinds, as the runtime asks each; only that of pub/sub has something.
func components() *registry.Options {
	told := logger.NewLogger("dapr.contrib")
	pubsub.DefaultRegistry.Logger = told
	nameresolution.DefaultRegistry.Logger = told
	workflows.DefaultRegistry.Logger = told
	wfbackend.DefaultRegistry.Logger = told
	pubsub.DefaultRegistry.RegisterComponent(kafka.NewKafka, "kafka")
	return registry.NewOptions().
		WithSecretStores(secretstores.DefaultRegistry).
		WithStateStores(state.DefaultRegistry).
		WithConfigurations(configuration.DefaultRegistry).
		WithLocks(lock.DefaultRegistry).
		WithPubSubs(pubsub.DefaultRegistry).
		WithNameResolutions(nameresolution.DefaultRegistry).
		WithBindings(bindings.DefaultRegistry).
		WithCryptoProviders(crypto.DefaultRegistry).
		WithHTTPMiddlewares(http.DefaultRegistry).
		WithWorkflows(workflows.DefaultRegistry).
		WithWorkflowBackends(wfbackend.DefaultRegistry)
}
