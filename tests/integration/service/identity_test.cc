// Authentication by tokens and certificates, and what reflection shows to clients.
#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "gtest/gtest.h"
#include "inference/grpc_service.grpc.pb.h"
#include "tests/integration/methods/token_fixture.h"
#include "tests/integration/oip/fixture.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/captured_log.h"
#include "tests/support/certificates.h"
#include "tests/support/status_matchers.h"
#include "tests/support/tcp.h"
#include "tests/support/temp_files.h"
#include "tests/support/tls.h"

namespace aft::server {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(TokenTest, OnlyKnownClientsMayCall) {
  for (const char* bad :
       {"Bearer token c", "Bearer ", "token a", "Basic token a", "Bearer TOKEN A"}) {
    EXPECT_THAT(Call(Authorization(bad)),
                StatusIs(absl::StatusCode::kUnauthenticated, StartsWith("authorization: ")))
        << bad;
  }
  EXPECT_THAT(Call(), StatusIs(absl::StatusCode::kUnauthenticated, StartsWith("authorization: ")));
  EXPECT_EQ(server_->Metric(RequestsTotal("UNAUTHENTICATED", "Generate", "")), 6);
  EXPECT_TRUE(Call(Authorization("Bearer token a")).ok());
  EXPECT_TRUE(Call(Authorization("bearer  token a ")).ok());
}

TEST_F(TokenTest, AClientSeesItsOwnModelsOnly) {
  const auto list = [&](const char* token) {
    grpc::ClientContext context;
    if (token != nullptr) context.AddMetadata("authorization", token);
    v1::ListResponse response;
    const grpc::Status status = server_->models().List(&context, {}, &response);
    return status.ok() ? response.models_size() : -1;
  };
  EXPECT_EQ(list("Bearer token a"), 1);
  EXPECT_EQ(list("Bearer token b"), 0);
  EXPECT_EQ(list(nullptr), -1);
  v1::GetRequest get;
  get.set_name("fake");
  v1::GetResponse got;
  grpc::ClientContext without;
  EXPECT_THAT(server_->models().Get(&without, get, &got),
              StatusIs(absl::StatusCode::kUnauthenticated, _));
}

// No answer tells a client the name or version of a model that it may not use.
TEST_F(TokenTest, NoErrorNamesAModelThatTheClientMayNotUse) {
  const auto oip =
      inference::GRPCInferenceService::NewStub(TestServer::Connect(server_->server().address()));
  const auto with_token = [](grpc::ClientContext& context) {
    context.AddMetadata("authorization", "Bearer token b");
  };
  const auto ask = [&](auto& stub, auto method, auto request, auto response) {
    grpc::ClientContext context;
    with_token(context);
    return (stub.*method)(&context, request, &response);
  };
  using Oip = inference::GRPCInferenceService::Stub;
  const auto named = [](auto request, const char* model, const char* version) {
    request.set_name(model);
    request.set_version(version);
    return request;
  };
  for (const char* const model : {"other", "nothing", "fake"}) {
    const grpc::StatusCode expected = std::string(model) == "other"
                                          ? grpc::StatusCode::NOT_FOUND
                                          : grpc::StatusCode::PERMISSION_DENIED;
    v1::GenerateRequest generate = Request("x", 3);
    generate.set_model(model);
    generate.set_model_version("9");
    v1::TokenizeRequest tokenize;
    tokenize.set_model(model);
    tokenize.set_model_version("9");
    inference::ModelInferRequest infer;
    infer.set_model_name(model);
    infer.set_model_version("9");
    v1::StateServiceImportRequest import;
    import.set_model(model);
    grpc::ClientContext import_context;
    with_token(import_context);
    v1::StateServiceImportResponse imported;
    const auto writer = server_->states().Import(&import_context, &imported);
    writer->Write(import);
    writer->WritesDone();
    for (const grpc::Status& status :
         {GenerateStream(server_->inference(), generate, with_token).Finish(),
          ask(server_->inference(), &v1::InferenceService::Stub::Tokenize, tokenize,
              v1::TokenizeResponse()),
          ask(server_->models(), &v1::ModelService::Stub::Get, named(v1::GetRequest(), model, "9"),
              v1::GetResponse()),
          ask(*oip, &Oip::ModelInfer, infer, inference::ModelInferResponse()),
          ask(*oip, &Oip::ModelMetadata, named(inference::ModelMetadataRequest(), model, "9"),
              inference::ModelMetadataResponse()),
          ask(*oip, &Oip::ModelConfig, named(inference::ModelConfigRequest(), model, "9"),
              inference::ModelConfigResponse()),
          ask(*oip, &Oip::ModelStatistics, named(inference::ModelStatisticsRequest(), model, "9"),
              inference::ModelStatisticsResponse()),
          writer->Finish()}) {
      EXPECT_EQ(status.error_code(), expected) << status.error_message();
      if (std::string(model) != "fake") {
        EXPECT_THAT(status.error_message(), Not(HasSubstr("fake")));
      }
      EXPECT_THAT(status.error_message(), Not(HasSubstr("version")));
    }
  }
}

TEST_F(TokenTest, ReflectionOfARemovedClientEnds) {
  using Service = grpc::reflection::v1::ServerReflection;
  const auto stub = Service::NewStub(TestServer::Connect(server_->server().address()));
  grpc::ClientContext context;
  Authorization("Bearer token a")(context);
  const auto stream = stub->ServerReflectionInfo(&context);
  grpc::reflection::v1::ServerReflectionRequest request;
  request.set_list_services("");
  grpc::reflection::v1::ServerReflectionResponse response;
  ASSERT_TRUE(stream->Write(request) && stream->Read(&response));
  Replace(config_.security.clients_file, "clients { name: 'team-b' certificate: 'b' }");
  ASSERT_TRUE(server_->server().Reload(config_).ok());
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_THAT(stream->Finish(),
              StatusIs(absl::StatusCode::kUnauthenticated, "authorization: unknown token"));
}

TEST_F(TokenTest, MetricsNameTheFirstClientsAndSumUpTheRest) {
  EXPECT_TRUE(Call(Authorization("Bearer token a")).ok());
  EXPECT_FALSE(Call(Authorization("Bearer token b")).ok());
  const auto requests = [&](const char* client, const char* result) {
    return server_->Metric(
        absl::StrCat("aft_client_requests_total{client=\"", client, "\",result=\"", result, "\"}"));
  };
  EXPECT_EQ(requests("team-a", "ok"), 1);
  EXPECT_EQ(requests("team-a", "failed"), 0);
  EXPECT_EQ(requests("other", "ok"), 0);
  EXPECT_EQ(requests("other", "failed"), 1);
  EXPECT_EQ(server_->Metric("aft_client_tokens_total{client=\"team-a\"}"), 1 + 3);
  EXPECT_THAT(server_->Metrics(), Not(HasSubstr("team-b")));
}

TEST_F(TokenTest, TheMetricsSayThatTheNewestFileOfClientsCannotBeUsed) {
  const std::string metric = "aft_files_rejected{file=\"clients\"}";
  EXPECT_THAT(server_->Metrics(), HasSubstr(metric + " 0\n"));
  Replace(config_.security.clients_file, "clients {");
  EXPECT_TRUE(server_->server().Reload(config_).ok());
  EXPECT_EQ(server_->Metric(metric), 1);
  Replace(config_.security.clients_file, ClientEntry("team-a", "token a"));
  EXPECT_TRUE(server_->server().Reload(config_).ok());
  EXPECT_EQ(server_->Metric(metric), 0);
}

class TlsTest : public testing::Test {
 protected:
  TlsTest() { Write("server", MakeCertificate(authority_, "localhost")); }

  void Write(const std::string& name, const Certificate& certificate) {
    Replace(Path(name + ".key"), certificate.key);
    Replace(Path(name + ".pem"), certificate.certificate);
  }
  std::string Path(const std::string& name) const { return folder_.File(name); }

  ServerConfig Config() const {
    ServerConfig config = TestConfig();
    config.listen_address = "localhost:0";
    config.security.tls.cert_file = Path("server.pem");
    config.security.tls.key_file = Path("server.key");
    return config;
  }

  // Makes a call that trusts `authority` and presents `own`, if it is not empty.
  static grpc::Status Call(TestServer& server, const Certificate& authority,
                           const Certificate& own = {}) {
    const grpc::SslCredentialsOptions options{authority.certificate, own.key, own.certificate};
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto stub = v1::InferenceService::NewStub(grpc::CreateCustomChannel(
        server.server().address(), grpc::SslCredentials(options), arguments));
    return GenerateStream(*stub, Request("x", 3)).Finish();
  }

  const TempFolder folder_;
  const Certificate authority_ = MakeAuthority("one");
};

TEST_F(TlsTest, ClientsThatTrustTheAuthorityMayCallAndPlaintextMayNot) {
  TestServer server(Config());
  EXPECT_TRUE(Call(server, authority_).ok());
  const Certificate other = MakeAuthority("two");
  EXPECT_THAT(Call(server, other), StatusIs(absl::StatusCode::kUnavailable, _));
  EXPECT_THAT(GenerateStream(server.inference(), Request("x", 3)).Finish(),
              StatusIs(absl::StatusCode::kUnavailable, _));
}

TEST_F(TlsTest, CertificatesAreReadAgainWhenTheyChange) {
  ServerConfig config = Config();
  config.security.reload = std::chrono::seconds(1);
  TestServer server(config);
  ASSERT_TRUE(Call(server, authority_).ok());
  const Certificate next = MakeAuthority("next");
  Write("server", MakeCertificate(next, "localhost"));
  while (!Call(server, next).ok()) {
  }
  EXPECT_FALSE(Call(server, authority_).ok());
}

TEST_F(TlsTest, FilesThatCannotBeUsedChangeNothing) {
  ServerConfig config = Config();
  config.security.reload = std::chrono::seconds(1);
  config.security.tls.client_ca_file = Path("ca.pem");
  Replace(Path("ca.pem"), authority_.certificate);
  TestServer server(config);
  const Certificate own = MakeCertificate(authority_, "a.example");
  ASSERT_TRUE(Call(server, authority_, own).ok());
  struct File {
    const char* name;
    std::string bad;  // junk, or what does not belong to the other files
    std::string good;
  };
  const Certificate other = MakeCertificate(authority_, "localhost");
  const std::vector<File> files = {{"server.pem", "half of a cert", ReadBytes(Path("server.pem"))},
                                   {"server.key", other.key, ReadBytes(Path("server.key"))},
                                   {"ca.pem", "", authority_.certificate}};
  for (const File& file : files) {
    const CapturedLog log;
    Replace(Path(file.name), file.bad);
    // gRPC looks for changes every second.
    auto end = TimePoint::max();
    while (std::chrono::steady_clock::now() < end) {
      ASSERT_TRUE(Call(server, authority_, own).ok()) << file.name;
      if (end != TimePoint::max() || log.Lines("tls.files_rejected").empty()) continue;
      end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1200);
    }
    const auto lines = log.Lines("tls.files_rejected");
    ASSERT_EQ(lines.size(), 1);  // not once for each time that it looked
    EXPECT_THAT(lines[0]["error"], HasSubstr(file.name));
    Replace(Path(file.name), file.good);
  }
  // The descriptors of the copies stay the same when their content changes.
  const Certificate next = MakeAuthority("next");
  Write("server", MakeCertificate(next, "localhost"));
  while (!Call(server, next, own).ok()) {
  }
  EXPECT_FALSE(Call(server, authority_, own).ok());
}

// Requests the list of models over HTTP. Returns "" when the TLS handshake fails.
std::string Models(TestServer& server, const Certificate& authority, const Certificate& own = {},
                   const std::string& protocol = "http/1.1") {
  const TlsConnection connection(server.server().http_address(), authority, own, protocol);
  connection.Send("GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  return connection.ReadAll();
}

TEST_F(TlsTest, HttpHasTheSameCertificates) {
  ServerConfig config = Config();
  config.http_address = "localhost:0";
  config.metrics_address = "127.0.0.1:0";
  config.security.reload = std::chrono::seconds(1);
  TestServer server(config);
  EXPECT_GT(server.Metric("aft_tls_certificate_expires_seconds"), 0);
  EXPECT_THAT(Models(server, authority_), StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(Models(server, authority_, {}, /*protocol=*/""), StartsWith("HTTP/1.1 200 OK"));
  EXPECT_EQ(Models(server, authority_, {}, "h2"), "");
  EXPECT_EQ(Models(server, MakeAuthority("two")), "");
  EXPECT_THAT(HttpGet(server.server().http_address(), "/v1/models"),
              EndsWith("\r\nContent-Length: 35\r\n\r\nthis port speaks TLS: use https://\n"));

  // After an unusable file the server keeps its old certificate.
  const CapturedLog log;
  Replace(Path("server.pem"), "half of a cert");
  while (log.Lines("tls.files_rejected").empty()) {
    EXPECT_THAT(Models(server, authority_), StartsWith("HTTP/1.1 200 OK"));
  }
  EXPECT_EQ(server.Metric("aft_files_rejected{file=\"tls\"}"), 1);
  const Certificate next = MakeAuthority("next");
  Write("server", MakeCertificate(next, "localhost"));
  while (Models(server, next).empty()) {
  }
  server.WaitForMetric("aft_files_rejected{file=\"tls\"}", 0);
  EXPECT_EQ(Models(server, authority_), "");
}

TEST_F(TlsTest, AReloadReadsCertificatesAtOnce) {
  ServerConfig config = Config();
  config.http_address = "localhost:0";
  config.security.reload = std::chrono::hours(1);
  TestServer server(config);
  const Certificate next = MakeAuthority("next");
  Write("server", MakeCertificate(next, "localhost"));
  ASSERT_TRUE(server.server().Reload(config).ok());
  EXPECT_THAT(Models(server, next), StartsWith("HTTP/1.1 200 OK"));
}

TEST_F(TlsTest, ClientCertificatesIdentifyClients) {
  const Certificate clients = MakeAuthority("clients");
  Replace(Path("ca.pem"), clients.certificate);
  Replace(Path("clients.textproto"),
          "clients { name: 'service-a' certificate: 'a.example' models: 'fake' }"
          "clients { name: 'service-u' certificate: 'spiffe://u' }"
          "clients { name: 'others' certificate: 'a@b.example' certificate: '127.0.0.9' }"
          "clients { name: 'service-b' certificate: 'b.example' models: 'other' }");
  ServerConfig config = Config();
  config.http_address = "localhost:0";
  config.security.tls.client_ca_file = Path("ca.pem");
  config.security.clients_file = Path("clients.textproto");
  TestServer server(config);
  const auto allowed = StatusIs(absl::StatusCode::kOk, _);
  const auto unknown = StatusIs(absl::StatusCode::kUnauthenticated, _);
  const auto unavailable = StatusIs(absl::StatusCode::kUnavailable, _);
  const auto lists_fake = HasSubstr("\"fake\"");
  const auto is_401 = StartsWith("HTTP/1.1 401");
  struct Attempt {
    const char* name;
    Certificate certificate;
    testing::Matcher<grpc::Status> over_grpc;
    testing::Matcher<std::string> over_http;
  };
  const std::vector<Attempt> attempts = {
      {"common name", MakeCertificate(clients, "a.example", "DNS:x.example"), allowed, lists_fake},
      {"both names", MakeCertificate(clients, "a.example"), allowed, lists_fake},
      {"DNS", MakeCertificate(clients, "x", "DNS:x.example,DNS:a.example"), allowed, lists_fake},
      {"URI", MakeCertificate(clients, "x", "URI:spiffe://u"), allowed, lists_fake},
      // clients.proto does not support names of these kinds.
      {"others", MakeCertificate(clients, "x", "email:a@b.example,IP:127.0.0.9"), unknown, is_401},
      {"another model's", MakeCertificate(clients, "b.example"),
       StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("service-b")),
       AllOf(StartsWith("HTTP/1.1 200"), Not(lists_fake))},
      {"unknown", MakeCertificate(clients, "c.example"), unknown, is_401},
      {"another authority's", MakeCertificate(authority_, "a.example"), unavailable, ""},
      {"none", {}, unavailable, ""}};
  for (const Attempt& one : attempts) {
    EXPECT_THAT(Call(server, authority_, one.certificate), one.over_grpc) << one.name;
    EXPECT_THAT(Models(server, authority_, one.certificate), one.over_http) << one.name;
  }
}

TEST_F(TlsTest, UnusableFilesAreNamedAtStart) {
  const auto fault = [](const ServerConfig& config) {
    auto server = Server::Create(config, FakeLoader(), {.version = "test"});
    EXPECT_TRUE(server.ok());
    return (*server)->Start();
  };
  ServerConfig config = Config();
  config.security.tls.cert_file = Path("missing");
  EXPECT_THAT(fault(config), StatusIs(absl::StatusCode::kInvalidArgument,
                                      StartsWith("security.tls.cert_file: cannot use ")));
  config = Config();
  Replace(config.security.tls.key_file, MakeAuthority("another").key);
  EXPECT_THAT(fault(config), StatusIs(absl::StatusCode::kInvalidArgument,
                                      StartsWith("security.tls.key_file: cannot use ")));
  Write("server", MakeCertificate(authority_, "localhost"));
  config.security.tls.client_ca_file = Path("missing");
  EXPECT_THAT(fault(config), StatusIs(absl::StatusCode::kInvalidArgument,
                                      StartsWith("security.tls.client_ca_file: cannot use ")));
  config = Config();
  config.security.clients_file = Path("missing");
  EXPECT_THAT(fault(config), StatusIs(absl::StatusCode::kNotFound, HasSubstr("missing")));
}

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

template <typename Api>
class ReflectionTest : public testing::Test {
 protected:
  using Request = typename Api::Request;
  using Response = typename Api::Response;

  // Sends the requests one after another on one stream.
  grpc::Status Ask(TestServer& server, const std::vector<Request>& requests) {
    const auto stub = Api::Service::NewStub(TestServer::Connect(server.server().address()));
    grpc::ClientContext context;
    const auto stream = stub->ServerReflectionInfo(&context);
    responses_.clear();
    for (const Request& request : requests) {
      stream->Write(request);
      Response response;
      if (!stream->Read(&response)) break;
      responses_.push_back(response);
    }
    stream->WritesDone();
    return stream->Finish();
  }

  std::vector<Response> responses_;
};

using Apis = testing::Types<V1, V1Alpha>;
TYPED_TEST_SUITE(ReflectionTest, Apis);

TYPED_TEST(ReflectionTest, ListsTheServicesAndShowsTheirFiles) {
  TestServer server;
  std::vector<typename TypeParam::Request> requests(9);
  requests[0].set_list_services("*");
  requests[1].set_file_containing_symbol("aft.v1.InferenceService");
  requests[2].set_file_by_filename("grpc/health/v1/health.proto");
  requests[3].set_file_containing_symbol("aft.v1.Nothing");
  requests[4].set_all_extension_numbers_of_type("aft.v1.Usage");
  requests[5].mutable_file_containing_extension()->set_containing_type("aft.v1.Usage");
  requests[6].set_all_extension_numbers_of_type("google.protobuf.FileOptions");
  auto& extension = *requests[7].mutable_file_containing_extension();
  extension.set_containing_type("google.protobuf.FileOptions");
  extension.set_extension_number(50101);
  ASSERT_TRUE(this->Ask(server, requests).ok());
  const auto& responses = this->responses_;
  ASSERT_EQ(responses.size(), 9U);
  std::vector<std::string> names;
  for (const auto& service : responses[0].list_services_response().service()) {
    names.push_back(service.name());
  }
  EXPECT_THAT(names,
              ElementsAre("aft.v1.InferenceService", "aft.v1.ModelService", "aft.v1.StateService",
                          "grpc.health.v1.Health", "inference.GRPCInferenceService"));
  EXPECT_EQ(responses[0].original_request().list_services(), "*");
  ASSERT_EQ(responses[1].file_descriptor_response().file_descriptor_proto_size(),
            4);  // the file and the files that it imports
  EXPECT_THAT(responses[1].file_descriptor_response().file_descriptor_proto(0),
              HasSubstr("GenerateRequest"));
  EXPECT_EQ(responses[2].file_descriptor_response().file_descriptor_proto_size(), 1);
  EXPECT_EQ(responses[3].error_response().error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(responses[4].all_extension_numbers_response().base_type_name(), "aft.v1.Usage");
  EXPECT_EQ(responses[5].error_response().error_code(), grpc::NOT_FOUND);
  EXPECT_THAT(responses[6].all_extension_numbers_response().extension_number(), Contains(50101));
  ASSERT_GT(responses[7].file_descriptor_response().file_descriptor_proto_size(), 0);
  EXPECT_THAT(responses[7].file_descriptor_response().file_descriptor_proto(0),
              HasSubstr("aft/v1/generation_options.proto"));
  EXPECT_EQ(responses[8].error_response().error_code(), grpc::INVALID_ARGUMENT);
}

TYPED_TEST(ReflectionTest, ALongNameEndsTheStream) {
  TestServer server;
  std::vector<typename TypeParam::Request> requests(1);
  requests[0].set_file_containing_symbol(std::string(100'000, 's'));
  EXPECT_THAT(this->Ask(server, requests), StatusIs(absl::StatusCode::kInvalidArgument, _));
}

TYPED_TEST(ReflectionTest, CanBeSwitchedOff) {
  ServerConfig config = TestConfig();
  config.security.reflection = false;
  TestServer server(config);
  EXPECT_THAT(this->Ask(server, {{}}), StatusIs(absl::StatusCode::kUnimplemented, _));
}

TYPED_TEST(ReflectionTest, IsForKnownClientsAndWithinTheirMemory) {
  const TempFolder folder;
  ServerConfig config = TestConfig();
  config.security.clients_file = folder.File("clients");
  Replace(config.security.clients_file, ClientEntry("a", "t"));
  TestServer closed(config);
  EXPECT_THAT(this->Ask(closed, {{}}), StatusIs(absl::StatusCode::kUnauthenticated, _));
  config = TestConfig();
  config.limits.max_memory_bytes = 1000;
  TestServer small(config);
  EXPECT_THAT(this->Ask(small, {{}}), StatusIs(absl::StatusCode::kResourceExhausted, _));
}

}  // namespace
}  // namespace aft::server
