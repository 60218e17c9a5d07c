#include "server/transport/reflection_service.h"

#include <optional>
#include <set>
#include <utility>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "server/config/checks.h"
#include "server/observability/log.h"
#include "server/transport/call_metadata.h"
#include "server/transport/message_bytes.h"

namespace aft::server {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;

constexpr size_t kMaxRequestBytes = 1024;          // enough for names
constexpr size_t kStreamBytes = size_t{64} << 10;  // about an answer and gRPC's buffers

struct V1 {
  using Service = grpc::reflection::v1::ServerReflection;
  using Request = grpc::reflection::v1::ServerReflectionRequest;
  using Response = grpc::reflection::v1::ServerReflectionResponse;
};
struct V1Alpha {
  using Service = grpc::reflection::v1alpha::ServerReflection;
  using Request = grpc::reflection::v1alpha::ServerReflectionRequest;
  using Response = grpc::reflection::v1alpha::ServerReflectionResponse;
};

// Adds the file and all files that it imports.
template <typename Response>
void AddFiles(const FileDescriptor& file, std::set<const FileDescriptor*>& added,
              Response& response) {
  if (!added.insert(&file).second) return;
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  response.mutable_file_descriptor_response()->add_file_descriptor_proto(proto.SerializeAsString());
  for (int i = 0; i < file.dependency_count(); ++i) {
    AddFiles(*file.dependency(i), added, response);
  }
}

template <typename Response>
void AnswerError(grpc::StatusCode code, const std::string& message, Response& response) {
  response.mutable_error_response()->set_error_code(code);
  response.mutable_error_response()->set_error_message(message);
}

template <typename Request, typename Response>
void Answer(const Request& request, const std::vector<std::string>& services, Response& response) {
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  const FileDescriptor* file = nullptr;
  switch (request.message_request_case()) {
    case Request::kListServices:
      for (const std::string& name : services) {
        response.mutable_list_services_response()->add_service()->set_name(name);
      }
      return;
    case Request::kFileByFilename:
      file = pool.FindFileByName(request.file_by_filename());
      break;
    case Request::kFileContainingSymbol:
      file = pool.FindFileContainingSymbol(request.file_containing_symbol());
      break;
    case Request::kAllExtensionNumbersOfType: {
      const auto* const type = pool.FindMessageTypeByName(request.all_extension_numbers_of_type());
      if (type == nullptr) break;
      auto& numbers = *response.mutable_all_extension_numbers_response();
      numbers.set_base_type_name(type->full_name());
      std::vector<const google::protobuf::FieldDescriptor*> extensions;
      pool.FindAllExtensions(type, &extensions);
      for (const auto* extension : extensions) numbers.add_extension_number(extension->number());
      return;
    }
    case Request::kFileContainingExtension: {
      const auto& asked = request.file_containing_extension();
      const auto* const type = pool.FindMessageTypeByName(asked.containing_type());
      if (type == nullptr) break;
      const auto* const extension = pool.FindExtensionByNumber(type, asked.extension_number());
      if (extension != nullptr) file = extension->file();
      break;
    }
    case Request::MESSAGE_REQUEST_NOT_SET:
      return AnswerError(grpc::INVALID_ARGUMENT, "message_request: must be set", response);
  }
  if (file == nullptr)
    return AnswerError(grpc::NOT_FOUND, "there is nothing of that name", response);
  std::set<const FileDescriptor*> added;
  AddFiles(*file, added, response);
}

using Reactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// One stream. It reads a request, writes the answer, then reads the next request; only one message
// is in memory at a time. It is idle while it waits for a request. ActiveCalls owns it until gRPC
// is done with it.
template <typename Api>
class Stream final : public Reactor,
                     public ActiveCall,
                     public OpenStream,
                     public std::enable_shared_from_this<Stream<Api>> {
 public:
  Stream(const TransportEnvironment& environment, const std::vector<std::string>& names,
         grpc::CallbackServerContext& context)
      : ActiveCall(context), environment_(environment), names_(names) {}

  void Start() {
    const absl::Status status = Admit();
    if (!status.ok()) return End(ToGrpcStatus(status));
    ReadOn();
  }

  void EndWhenIdle(const absl::Status& status) override {
    const grpc::Status end = ToGrpcStatus(status);
    {
      MutexLock lock(mutex_);
      end_when_idle_ = end;
      if (!idle_ || ended_) return;
      ended_ = true;
    }
    Close(end);
  }

  void OnReadDone(bool ok) override {
    {
      MutexLock lock(mutex_);
      if (ended_) return;  // End was called in the meantime
      idle_ = false;
      environment_.watches.SetIdle(this, false);
    }
    if (!ok) return End(grpc::Status::OK);  // the client is done
    typename Api::Request request;
    absl::Status status = CheckLength("message_request", bytes_.Length(), kMaxRequestBytes);
    if (status.ok()) status = ParseMessage(bytes_, request);
    if (!status.ok()) return End(ToGrpcStatus(status));
    typename Api::Response response;
    Answer(request, names_, response);
    status = SerializeMessage(response, bytes_);
    if (!status.ok()) return End(ToGrpcStatus(status));
    OperationBegins();
    StartWrite(&bytes_);
  }
  void OnWriteDone(bool ok) override {
    OperationEnds();
    if (!ok) return End(grpc::Status::CANCELLED);
    ReadOn();
  }
  void OnDone() override {
    ContextGoes();
    environment_.watches.Remove(this);
    environment_.active.Remove(this);  // may delete this
  }

 private:
  absl::Status Admit() {
    AFT_ASSIGN_OR_RETURN(const auto client, Identify(environment_.identity));
    charge_ = MemoryLedger::Charge(environment_.ledger, *client);
    if (!charge_.Resize(kStreamBytes)) return environment_.RefuseForMemory();
    return environment_.watches.Add(this->shared_from_this(), client->name);
  }

  // Waits for the next request, unless the stream is to end.
  void ReadOn() {
    std::optional<grpc::Status> end;
    {
      MutexLock lock(mutex_);
      end = end_when_idle_;
      idle_ = !end.has_value();
      environment_.watches.SetIdle(this, idle_);
      if (idle_) StartRead(&bytes_);  // with the lock: no read may begin after the end
    }
    if (end.has_value()) End(*end);
  }

  void End(const grpc::Status& status) {
    {
      MutexLock lock(mutex_);
      if (ended_) return;
      ended_ = true;
    }
    Close(status);
  }

  // REQUIRES: the caller has set `ended_`.
  void Close(const grpc::Status& status) {
    OperationBegins();
    Finish(status);
  }

  void OnRevoked(const absl::Status& why) override { EndWhenIdle(why); }
  void OnStuck(Duration waited) override {
    log::Warning("reflection.stuck", {{"peer", context().peer()}, {"waited_s", Seconds(waited)}});
  }

  const TransportEnvironment& environment_;
  const std::vector<std::string>& names_;
  MemoryLedger::Charge charge_;
  grpc::ByteBuffer bytes_;
  Mutex mutex_;
  bool idle_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> end_when_idle_ ABSL_GUARDED_BY(mutex_);
};

template <typename Api>
class ReflectionService final
    : public Api::Service::template WithRawCallbackMethod_ServerReflectionInfo<
          typename Api::Service::Service> {
 public:
  ReflectionService(const TransportEnvironment& environment, std::vector<std::string> names)
      : environment_(environment), names_(std::move(names)) {}

  Reactor* ServerReflectionInfo(grpc::CallbackServerContext* context) override {
    const auto stream = std::make_shared<Stream<Api>>(environment_, names_, *context);
    environment_.active.Add(stream);
    stream->Start();
    return stream.get();
  }

 private:
  const TransportEnvironment environment_;
  const std::vector<std::string> names_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeReflectionService(int version,
                                                     const TransportEnvironment& environment,
                                                     std::vector<std::string> names) {
  if (version == 1) return std::make_unique<ReflectionService<V1>>(environment, std::move(names));
  return std::make_unique<ReflectionService<V1Alpha>>(environment, std::move(names));
}

}  // namespace aft::server
