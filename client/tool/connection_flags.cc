#include "client/tool/connection_flags.h"

#include <fstream>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace aft::client {
namespace {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  if (path.empty()) return "";
  std::ifstream file(path, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(file), {}};
  if (!file) return absl::InvalidArgumentError(absl::StrCat("cannot read ", path));
  return content;
}

}  // namespace

void AddConnectionFlags(CLI::App& app, ConnectionFlags& flags) {
  app.add_option("--address", flags.address,
                 "Address of the server, HOST:PORT; of several servers, ipv4:HOST:PORT,HOST:PORT")
      ->envname("AFT_ADDRESS")
      ->capture_default_str();
  CLI::Option* const tls = app.add_flag("--tls", flags.tls, "Connect with TLS");
  app.add_option(
         "--ca", flags.ca,
         "File with the authorities (PEM) for the server's certificate; default: the system's")
      ->needs(tls);
  CLI::Option* const cert =
      app.add_option("--cert", flags.cert, "File with this client's certificate (PEM), for mTLS")
          ->needs(tls);
  CLI::Option* const key =
      app.add_option("--key", flags.key, "File with the private key (PEM) of --cert")->needs(cert);
  cert->needs(key);
  app.add_option("--token-file", flags.token_file,
                 "File with the token that identifies this client")
      ->envname("AFT_TOKEN_FILE");
}

absl::StatusOr<ClientOptions> MakeClientOptions(const ConnectionFlags& flags) {
  ClientOptions options;
  options.address = flags.address;
  if (flags.tls) {
    ClientTls& tls = options.tls.emplace();
    AFT_ASSIGN_OR_RETURN(tls.authorities, ReadFile(flags.ca));
    AFT_ASSIGN_OR_RETURN(tls.certificate, ReadFile(flags.cert));
    AFT_ASSIGN_OR_RETURN(tls.key, ReadFile(flags.key));
  }
  AFT_ASSIGN_OR_RETURN(std::string token, ReadFile(flags.token_file));
  options.token = std::string(absl::StripAsciiWhitespace(token));
  return options;
}

}  // namespace aft::client
