//! Files in folders that other users of the machine may write to, or that only their owner may read.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::path::Path;

/// Treatment of a path whose last part is a symlink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// The file that it points to is opened.
    Follow,
    /// It is refused.
    Refuse,
}

/// Opens a regular file. Pipes, devices, sockets and folders are refused, and none of them is waited for.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] if the path is not a regular file; any error of opening it.
pub fn open_regular(path: &Path, how: &OpenOptions, links: Links) -> io::Result<File> {
    let refused = || io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file");
    #[cfg(unix)]
    let how = {
        use std::os::unix::fs::OpenOptionsExt;
        let (mut how, links) = (how.clone(), if links == Links::Refuse { libc::O_NOFOLLOW } else { 0 });
        how.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | links);
        how
    };
    #[cfg(not(unix))]
    if links == Links::Refuse && path.is_symlink() {
        return Err(refused());
    }
    let is_other = || match links {
        Links::Follow => std::fs::metadata(path).is_ok_and(|entry| !entry.is_file()),
        Links::Refuse => std::fs::symlink_metadata(path).is_ok_and(|entry| !entry.is_file()),
    };
    let file = how.open(path).map_err(|err| if is_other() { refused() } else { err })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(refused()) }
}

/// Makes a file readable and writable for its owner alone, whatever the umask.
///
/// # Errors
/// Any error of the system.
pub fn make_private(file: &File) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    }
    let _ = file;
    Ok(())
}

/// Creates a folder for its owner alone, with the folders above it. An existing one is closed to others if
/// it is the caller's.
///
/// # Errors
/// Any error of the system; [`io::ErrorKind::NotADirectory`] if the path is a file, or a link that is
/// refused.
pub fn private_folder(path: &Path, links: Links) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)?;
    let entry = match links {
        Links::Follow => std::fs::metadata(path)?,
        Links::Refuse => std::fs::symlink_metadata(path)?,
    };
    if !entry.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        if entry.permissions().mode() & 0o777 != 0o700 {
            // Fails for the folder of another user, who decides about it.
            let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700));
        }
    }
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("file"), "text").unwrap();
        symlink(path("file"), path("link")).unwrap();
        symlink("gone", path("dangling")).unwrap();
        let _socket = UnixListener::bind(path("socket")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap();
        assert!(made.success());
        let (mut read, mut write) = (File::options(), File::options());
        read.read(true);
        write.write(true).create(true).truncate(false);
        for how in [&read, &write] {
            let open = |name: &str, links| open_regular(&path(name), how, links).map_err(|err| err.kind());
            for links in [Links::Follow, Links::Refuse] {
                assert!(open("file", links).is_ok());
                for other in ["pipe", "socket", ""] {
                    assert_eq!(open(other, links).unwrap_err(), io::ErrorKind::InvalidInput, "{other}");
                }
            }
            assert_eq!(
                open_regular(Path::new("/dev/null"), how, Links::Follow).unwrap_err().kind(),
                io::ErrorKind::InvalidInput
            );
            assert!(open("link", Links::Follow).is_ok());
            for link in ["link", "dangling"] {
                assert_eq!(open(link, Links::Refuse).unwrap_err(), io::ErrorKind::InvalidInput, "{link}");
            }
        }
        assert_eq!(
            open_regular(&path("none"), &read, Links::Refuse).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn private_folders_are_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let folder = dir.path().join("a/b");
        private_folder(&folder, Links::Refuse).unwrap();
        assert_eq!([mode(&folder), mode(&dir.path().join("a"))], [0o700; 2]);
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        private_folder(&folder, Links::Refuse).unwrap();
        assert_eq!(mode(&folder), 0o700);
        let link = dir.path().join("link");
        symlink(&folder, &link).unwrap();
        private_folder(&link, Links::Follow).unwrap();
        let refused = private_folder(&link, Links::Refuse).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotADirectory);
    }
}
