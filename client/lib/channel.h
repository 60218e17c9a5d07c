#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/support/channel_arguments.h>

#include <memory>
#include <string>

#include "client/lib/call_options.h"

// The connections of a client. Internal to the library.
namespace aft::client {

// The arguments of the channel: those in `options`, and defaults for the rest.
grpc::ChannelArguments MakeChannelArgs(const ClientOptions& options);

// gRPC's service config in JSON: balancing, watching health and retries.
std::string MakeServiceConfig(const ClientOptions& options);

// `watch_health`: whether calls go only to servers that are SERVING.
std::shared_ptr<grpc::Channel> MakeChannel(const ClientOptions& options, bool watch_health);

}  // namespace aft::client
