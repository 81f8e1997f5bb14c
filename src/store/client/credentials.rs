//! What the requests of a client carry as credentials, in words: errors of refused requests say it.

use super::config::ServiceBuilder;

use std::path::PathBuf;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};

/// The kind of credentials that requests carry.
#[derive(Clone, Copy, Debug)]
pub struct Credentials {
    /// In words that follow "requested with".
    pub kind: &'static str,
    /// What to try when they are refused.
    pub remedy: &'static str,
}

/// What `storage_options` and a URL say of credentials, beside what the client knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    /// Where the access key of S3 is from, if there is one.
    pub key_from: KeyFrom,
    /// Whether `storage_options` have headers.
    pub headers: bool,
    /// Whether the URL has a query, which may be a signature.
    pub query: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum KeyFrom {
    Options,
    Profile,
    Environment,
}

impl Credentials {
    /// Those of a client, in the order in which `object_store` chooses.
    pub(super) fn of(builder: &ServiceBuilder, given: Given) -> Self {
        let signed = match builder {
            ServiceBuilder::S3(builder) => of_s3(builder, given.key_from),
            ServiceBuilder::Google(builder) => of_google(builder),
            ServiceBuilder::Azure(builder) => of_azure(builder),
            ServiceBuilder::Http(_) => return Self::of_server(given),
        };
        match signed {
            Some(kind) => Self {
                kind,
                remedy: "check that what it carried is right, not expired and permits to read it (for public data give storage_options={\"anon\": True})",
            },
            None => Self {
                kind: if given.headers {
                    "no credentials but the headers of storage_options"
                } else {
                    "no credentials"
                },
                remedy: "give credentials in storage_options or the environment, and ask for no unsigned requests there (anon, skip_signature)",
            },
        }
    }

    /// Those of a web server.
    fn of_server(given: Given) -> Self {
        const CHECK: &str = "check that what it carried is right, not expired and permits to read it";
        let (kind, remedy) = match (given.headers, given.query) {
            (false, false) => (
                "no credentials",
                "give storage_options={\"headers\": {\"authorization\": ...}} or a signed URL",
            ),
            (true, false) => ("the headers of storage_options", CHECK),
            (false, true) => ("the query of the URL", CHECK),
            (true, true) => ("the query of the URL and the headers of storage_options", CHECK),
        };
        Self { kind, remedy }
    }
}

/// Whether the keys of a store, if it has any, are left alone.
pub(super) fn is_unsigned(builder: &AmazonS3Builder) -> bool {
    is_on(builder.get_config_value(&AmazonS3ConfigKey::SkipSignature))
}

/// Whether an option is true, of a client whose truth values are "true" and "false".
fn is_on(value: Option<String>) -> bool {
    value.as_deref() == Some("true")
}

fn of_s3(builder: &AmazonS3Builder, key_from: KeyFrom) -> Option<&'static str> {
    use AmazonS3ConfigKey as Key;
    let has = |key| builder.get_config_value(&key).is_some();
    if is_unsigned(builder) {
        return None;
    }
    Some(if has(Key::AccessKeyId) || has(Key::SecretAccessKey) {
        match key_from {
            KeyFrom::Options => "the access key of storage_options",
            KeyFrom::Profile => "the access key of the AWS profile",
            KeyFrom::Environment => "the access key of AWS_ACCESS_KEY_ID",
        }
    } else if has(Key::WebIdentityTokenFile) && has(Key::RoleArn) {
        "a web identity"
    } else if has(Key::ContainerCredentialsRelativeUri) {
        "the role of the container (ECS)"
    } else if has(Key::ContainerCredentialsFullUri) && has(Key::ContainerAuthorizationTokenFile) {
        "the role of the pod (EKS)"
    } else {
        "the role of the machine (EC2), since no access key was found"
    })
}

fn of_google(builder: &GoogleCloudStorageBuilder) -> Option<&'static str> {
    use GoogleConfigKey as Key;
    let has = |key| builder.get_config_value(&key).is_some();
    if is_on(builder.get_config_value(&Key::SkipSignature)) {
        return None;
    }
    let default_file = || {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        home.is_some_and(|home| home.join(".config/gcloud/application_default_credentials.json").exists())
    };
    Some(if has(Key::BearerToken) {
        "a bearer token"
    } else if has(Key::ServiceAccount) || has(Key::ServiceAccountKey) {
        "the key of a service account"
    } else if has(Key::ApplicationCredentials) {
        "a file of application credentials"
    } else if default_file() {
        "the application default credentials of gcloud"
    } else {
        "the service account of the machine, since no other credentials were found"
    })
}

fn of_azure(builder: &MicrosoftAzureBuilder) -> Option<&'static str> {
    use AzureConfigKey as Key;
    let value = |key| builder.get_config_value(&key);
    let has = |keys: &[Key]| keys.iter().all(|key| builder.get_config_value(key).is_some());
    if is_on(value(Key::SkipSignature)) {
        return None;
    }
    if is_on(value(Key::UseEmulator)) {
        return Some(if has(&[Key::AccessKey]) {
            "the account key"
        } else if has(&[Key::Token]) {
            "a bearer token"
        } else if has(&[Key::SasKey]) {
            "a shared access signature (SAS)"
        } else {
            "the emulator's account key"
        });
    }
    let chosen = value(Key::CredentialType).filter(|kind| kind != "auto");
    let is_chosen = chosen.is_some();
    let kind = chosen.as_deref().unwrap_or_else(|| {
        let fabric = [
            Key::FabricTokenServiceUrl,
            Key::FabricWorkloadHost,
            Key::FabricSessionToken,
            Key::FabricClusterIdentifier,
        ];
        if has(&fabric) {
            "fabric"
        } else if has(&[Key::Token]) {
            "bearer_token"
        } else if has(&[Key::AccessKey]) {
            "access_key"
        } else if has(&[Key::ClientId, Key::AuthorityId, Key::FederatedTokenFile]) {
            "workload_identity"
        } else if has(&[Key::ClientId, Key::AuthorityId, Key::ClientSecret]) {
            "client_secret"
        } else if has(&[Key::SasKey]) {
            "sas_token"
        } else if is_on(value(Key::UseAzureCli)) {
            "azure_cli"
        } else {
            "managed_identity"
        }
    });
    Some(match kind {
        "fabric" => "a token of Microsoft Fabric",
        "bearer_token" => "a bearer token",
        "access_key" => "the account key",
        "workload_identity" => "a workload identity",
        "client_secret" => "the secret of a client",
        "sas_token" => "a shared access signature (SAS)",
        "azure_cli" => "the login of the Azure CLI",
        _ if is_chosen => "the managed identity of the machine",
        _ => "the managed identity of the machine, since no other credentials were found",
    })
}
