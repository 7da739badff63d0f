//! Control groups: the folders that say what this process may use, of versions 1 and 2.

use std::path::Path;

/// The folder of a group, in which files say its limits.
pub(super) struct GroupFolder {
    pub(super) path: String,
    /// Of version 2, whose files have other names.
    pub(super) is_unified: bool,
}

/// The groups in `/proc/self/cgroup` and those around them, as far as they are of this controller.
/// In a container the group may be mounted at the root.
pub(super) fn folders(groups: &str, controller: &str) -> Vec<GroupFolder> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let root = match controllers {
            "" => "/sys/fs/cgroup".to_owned(),
            _ if controllers.split(',').any(|it| it == controller) => {
                format!("/sys/fs/cgroup/{controller}")
            }
            _ => continue,
        };
        for folder in Path::new(group).ancestors() {
            let folder = folder.to_string_lossy();
            let path = format!("{root}{}", folder.trim_end_matches('/'));
            found.push(GroupFolder { path, is_unified: controllers.is_empty() });
        }
    }
    found
}
